#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the real TensorBoard reads from our event files (needs PyPI tensorboard, tried with 2.21.0).

    check_events.py FOLDER     print every scalar that TensorBoard's EventAccumulator finds in the
                               event files of a run folder, one JSON object a line
    check_events.py --fixture  print, as hex, the records that TensorBoard's own writer makes of the
                               events in test/io/event_file_test.cpp

The report tests run the first form when DFLASH_TENSORBOARD_PYTHON names a Python that has
tensorboard.
"""

import json
import sys


def print_scalars(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(folder, size_guidance={"scalars": 0})
    accumulator.Reload()
    for tag in sorted(accumulator.Tags()["scalars"]):
        for event in accumulator.Scalars(tag):
            print(json.dumps({"tag": tag, "step": event.step, "value": event.value, "wall_time": event.wall_time}))


def print_fixture():
    import io

    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter

    scalars = summary_pb2.Summary(value=[
        summary_pb2.Summary.Value(tag="train/loss", simple_value=2.5),
        summary_pb2.Summary.Value(tag="train/lr", simple_value=6e-4),
    ])
    start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
    for event in (
        event_pb2.Event(wall_time=1700000000.25, file_version="brain.Event:2"),
        event_pb2.Event(wall_time=1700000001.5, step=300, summary=scalars),
        event_pb2.Event(wall_time=1700000002.0, step=41, session_log=start),
    ):
        buffer = io.BytesIO()
        RecordWriter(buffer).write(event.SerializeToString())
        print(buffer.getvalue().hex())


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--fixture":
        print_fixture()
    else:
        print_scalars(sys.argv[1])
