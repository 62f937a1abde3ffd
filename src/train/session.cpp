// SPDX-License-Identifier: Apache-2.0
#include "training_session.hpp"
#include "warm_up_row.hpp"

#include <dflash/comm/nccl_group.hpp>
#include <dflash/core/log.hpp>
#include <dflash/io/atomic_file.hpp>
#include <dflash/pipeline/replica_dispatcher.hpp>
#include <dflash/tensor/bridge.hpp>
#include <dflash/train/acceptance_evaluator.hpp>
#include <dflash/train/kernel_start.hpp>
#include <dflash/train/row_stream.hpp>
#include <dflash/train/run_data.hpp>
#include <dflash/train/run_products.hpp>
#include <dflash/train/stop_tokens.hpp>
#include <dflash/train/torch_worker.hpp>
#include <dflash/train/trainer.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <functional>
#include <map>
#include <thread>

namespace dflash::train {
namespace {

/// Of a collective between drafters: longer than any step, shorter than anybody's patience.
constexpr std::chrono::minutes kCollectiveTimeout(5);

/// Everything of a run that lives while it trains. Members are in the order of their making; the
/// pipeline goes first, then the workers join, and only then is anything freed that their tasks
/// use.
class Session : NonCopyable {
  public:
    Session(PreparedRun run,
            const TrainRequest& request,
            const SessionParts& parts,
            std::optional<Checkpoint> checkpoint,
            std::optional<data::Cursor> end);

    SessionResult train(const std::string& folder, RunReport& report, StopSignals& signals);

  private:
    void build(StatusBoard& board);
    void start_workers();
    void load_targets();
    void build_drafters();
    void make_acceptance();
    void make_slots();
    void make_save_buffers();
    void at_once(const char* name, const std::function<void(DrafterRank&)>& task);
    void warm_up();
    void tell_products(const std::string& folder, RunReport& report) const;
    void set_weights();
    void make_pipeline();
    RunSample sample() const;

    gpu::Worker& worker_at(int position) { return *workers_[static_cast<std::size_t>(position)]; }

    PreparedRun run_;
    Settings settings_;
    std::optional<Checkpoint> checkpoint_;
    std::optional<data::Cursor> end_;  // of the data that there is so far
    Whereabouts& whereabouts_;
    std::function<void(const data::PackedRow&)> on_row_;
    std::function<void(const data::PackedRow&, const FeatureSlot&)> on_features_;
    FirstError first_error_;
    FirstError::Subscription failure_watch_;
    KernelStart kernels_;
    RunProducts products_;
    std::vector<FeatureSlot> slots_;
    std::vector<std::unique_ptr<TargetReplica>> targets_;
    std::vector<std::unique_ptr<DrafterRank>> ranks_;
    std::unique_ptr<comm::ProcessGroup> group_;
    std::unique_ptr<Evaluator> evaluator_;
    std::unique_ptr<AcceptanceEvaluator> acceptance_;  // null: off
    std::unique_ptr<FeatureGate> gate_;
    OptimizerState save_buffers_;
    std::vector<std::unique_ptr<gpu::Worker>> workers_;
    std::unique_ptr<EpochSource> source_;
    std::unique_ptr<DatasetEncoder> encoder_;
    std::unique_ptr<StepRowPacker> packer_;
    std::unique_ptr<pipeline::ReplicaDispatcher> dispatcher_;
    std::unique_ptr<pipeline::Pipeline> pipeline_;
    StatusBoard::Activity watched_;
};

Session::Session(PreparedRun run,
                 const TrainRequest& request,
                 const SessionParts& parts,
                 std::optional<Checkpoint> checkpoint,
                 std::optional<data::Cursor> end)
    : run_(std::move(run)),
      settings_(request.settings),
      checkpoint_(std::move(checkpoint)),
      end_(end),
      whereabouts_(parts.whereabouts),
      on_row_(request.on_row),
      on_features_(request.on_features),
      failure_watch_(first_error_.on_error(
          [this, &watchdog = parts.watchdog] { watchdog.run_failed(first_error_.get()); })),
      kernels_(run_, settings_.cache, first_error_),
      products_(settings_.train.products,
                cache_root(settings_.cache),
                checkpoint_ ? checkpoint_->products : ProductRecord{}) {
    try {
        build(parts.board);
    } catch (...) {
        first_error_.store(std::current_exception());
        first_error_.rethrow_if_failed();
    }
}

void Session::build(StatusBoard& board) {
    set_up_torch_process();
    comm::set_nccl_defaults();
    start_workers();
    StatusBoard::Activity now;
    const auto begin = [&](const char* what) {
        whereabouts_.loop().set(what);
        now = board.enter(report::RunState::Starting, what);
    };
    begin("prepare kernels");
    kernels_.prepare(workers_);
    begin("load");
    load_targets();
    build_drafters();
    make_slots();
    begin("prepare the evaluation");
    evaluator_ = std::make_unique<Evaluator>(
        pack_held_out(run_.held_out_data(), run_.held_out_ids, run_.pack),
        *run_.training,
        run_.first_train_ids(),
        run_.pack.block.block_size,
        targets_,
        ranks_,
        settings_.eval);
    evaluator_->allocate(run_.draft.config.num_features(), run_.draft.config.hidden_size);
    make_acceptance();
    gate_ = std::make_unique<FeatureGate>(
        targets_,
        ranks_,
        [&data = *run_.training](SampleId id) { return data.place_of(id); },
        settings_.gate);
    begin("warm up");
    warm_up();
    set_weights();
    make_save_buffers();
    make_pipeline();
    for (const auto& worker : workers_) {
        worker->call({"keep room"}, [&] { keep_room_for_temporaries(worker->device()); });
    }
    products_.seal();
    kernels_.watch("shapes whose product was not chosen",
                   [this] { return products_.num_unforeseen(); });
    kernels_.seal();

    std::vector<std::string> pci_bus_ids;
    for (const gpu::Device& device : run_.devices) {
        pci_bus_ids.push_back(device.is_cuda() ? gpu::pci_bus_id(device.ordinal) : "");
    }
    watched_ = board.watch([this] { return sample(); }, pci_bus_ids);
}

/// Counters for the status board, from its thread.
RunSample Session::sample() const {
    RunSample sample;
    for (const auto& worker : workers_) {
        sample.devices.push_back({.name = worker->device().name,
                                  .busy_s = worker->busy_s(),
                                  .tasks = static_cast<std::int64_t>(worker->load()),
                                  .row_idle_s = std::nullopt});
    }
    const std::vector<pipeline::ReplicaStats> replicas = dispatcher_->stats();
    for (std::size_t i = 0; i < replicas.size(); ++i) {
        DeviceSample& device = sample.devices[static_cast<std::size_t>(run_.plan.roles.targets[i])];
        device.has_target = true;
        device.row_idle_s = replicas[i].idle_s;
    }
    for (const int position : run_.plan.roles.drafters) {
        sample.devices[static_cast<std::size_t>(position)].has_drafter = true;
    }
    sample.pipeline = pipeline_->stats();
    return sample;
}

void Session::start_workers() {
    const bool enough_cores = std::thread::hardware_concurrency() >= run_.devices.size();
    for (const gpu::Device& device : run_.devices) {
        workers_.push_back(std::make_unique<gpu::Worker>(
            device,
            first_error_,
            gpu::WorkerOptions{.on_start = [device] { set_up_torch(device); },
                               .pin = enough_cores}));
        whereabouts_.add_worker(watched_worker(run_.plan.roles, *workers_.back()));
    }
}

void Session::load_targets() {
    const std::vector<std::int64_t>& taps = run_.draft.config.target_layer_ids;
    target::LoadOptions options;
    // Real decoding needs all of it.
    options.with_head = run_.plan.acceptance.has_value();
    options.num_layers = options.with_head ? 0 : *std::max_element(taps.begin(), taps.end()) + 1;
    for (const int position : run_.plan.roles.targets) {
        gpu::Worker& worker = worker_at(position);
        options.device = tensor::torch_device(worker.device());
        options.dtype = compute_dtype(worker.device());
        options.row_ops = kernels_.make_row_ops(worker.device());
        // The first replica reads the files; the others take the tensors from it.
        auto model = worker.call({"load the target"}, [&] {
            auto loaded =
                targets_.empty()
                    ? target::load_target(run_.location.folder, options)
                    : target::replicate(targets_.front()->model(), options.device, options.row_ops);
            synchronize_stream(worker.device());
            return loaded;
        });
        targets_.push_back(std::make_unique<TargetReplica>(worker, std::move(model), taps));
    }
}

void Session::make_acceptance() {
    if (run_.plan.acceptance) {
        acceptance_ = std::make_unique<AcceptanceEvaluator>(
            decoding_sites(workers_, targets_, run_.draft.config, kernels_),
            run_.acceptance_prompts,
            answer_stop_tokens(target::GenerationConfig::read(run_.location.folder, run_.target),
                               *run_.tokenizer,
                               *run_.format),
            settings_.eval,
            *ranks_.front());
    }
}

void Session::build_drafters() {
    const model::DraftConfig& config = run_.draft.config;
    const TrainSettings& train = settings_.train;
    const AdamWOptions options{.beta1 = train.betas.at(0),
                               .beta2 = train.betas.at(1),
                               .eps = train.eps,
                               .weight_decay = train.weight_decay,
                               .clip = train.clip};

    const auto num_ranks = static_cast<int>(run_.plan.roles.drafters.size());
    std::vector<gpu::Device> drafter_devices;
    for (const int position : run_.plan.roles.drafters) {
        drafter_devices.push_back(worker_at(position).device());
    }
    group_ = comm::make_process_group(drafter_devices, first_error_, kCollectiveTimeout);
    whereabouts_.set_collectives(group_->board());
    // Logical devices on one physical device share the frozen embedding and head.
    std::map<std::string, model::FrozenEnds> ends_by_device;
    for (int rank = 0; rank < num_ranks; ++rank) {
        gpu::Worker& worker = worker_at(run_.plan.roles.drafters[static_cast<std::size_t>(rank)]);
        ranks_.push_back(std::make_unique<DrafterRank>(worker, rank, *group_));
        DrafterRank& drafter = *ranks_.back();
        worker.call({"build the drafter"}, [&] {
            const at::Device device = tensor::torch_device(worker.device());
            model::FrozenEnds& ends = ends_by_device[device.str()];
            if (!ends.embed_VH.defined()) {
                const target::Ends loaded =
                    target::load_ends(run_.location.folder,
                                      {.device = device, .dtype = compute_dtype(worker.device())});
                ends = {loaded.embed_VH, loaded.head_VH};
            }
            drafter.build(config,
                          ends,
                          options,
                          run_.loss_weights,
                          kernels_.make_drafter_paths(
                              config, worker.device(), products_.make_gemm(worker.device())),
                          train.recompute_layers,
                          run_.head_precision);
            ends = drafter.drafter().ends();
            synchronize_stream(worker.device());
        });
    }
    at_once("join the drafters", [](DrafterRank& drafter) { drafter.join(); });
}

/// For what is a collective: a rank alone would wait for the others. After an error this may return
/// while a task still runs, so tasks own what they use.
void Session::at_once(const char* name, const std::function<void(DrafterRank&)>& task) {
    for (const auto& rank : ranks_) {
        rank->worker().post({name}, [task, drafter = rank.get()] { task(*drafter); });
    }
    for (const auto& rank : ranks_) {
        rank->worker().call([] {});
    }
    first_error_.rethrow_if_failed();
}

void Session::make_slots() {
    for (const auto& target : targets_) {
        target->worker().call({"reach the drafters"}, [&] {
            for (const auto& rank : ranks_) {
                target->reach(rank->worker().device(), run_.plan.max_row_tokens);
            }
        });
    }
    slots_.resize(static_cast<std::size_t>(run_.plan.num_slots));
    for (std::size_t s = 0; s < slots_.size(); ++s) {
        DrafterRank& owner = *ranks_[s % ranks_.size()];
        owner.worker().call({"make a slot"}, [&] {
            slots_[s] = owner.make_slot(run_.draft.config.num_features(),
                                        run_.plan.max_row_tokens,
                                        run_.draft.config.hidden_size);
        });
    }
}

/// How the drafter's products are made, kept in the run's folder, and what is otherwise than it was
/// when the checkpoint was saved, or in the run before this one.
void Session::tell_products(const std::string& folder, RunReport& report) const {
    const ProductRecord now = products_.record();
    for (const std::string& line : products_.to_lines()) {
        log_info("products  {}", line);
    }
    if (checkpoint_) {
        const std::vector<std::string> changes = product_changes(checkpoint_->products, now);
        for (const std::string& change : changes) {
            log_warning(
                "{}; what follows is what the run without a break would have done only to "
                "rounding",
                change);
        }
        report.changed(checkpoint_->progress.step, changes);
    } else if (const auto neighbour = find_neighbour_products(folder, now)) {
        for (const std::string& change : product_changes(neighbour->record, now)) {
            log_warning("{} ({}); the results of the two runs are equal only to rounding",
                        change,
                        neighbour->run_folder);
        }
    }
    if (!now.empty()) {
        io::write_file_atomically(folder + "/products.json", now.to_text());
    }
}

/// A full-size row through every target and every drafter, so that libraries load and allocate now
/// what they need. CPU devices have nothing to load.
void Session::warm_up() {
    const bool any_gpu = std::any_of(workers_.begin(), workers_.end(), [](const auto& worker) {
        return worker->device().is_cuda();
    });
    if (!any_gpu) {
        return;
    }
    const data::PackedRow row = make_warm_up_row(run_.pack.block,
                                                 run_.plan.max_row_tokens,
                                                 run_.plan.max_row_blocks,
                                                 run_.target.vocab_size);
    // Before anything else uses the GPUs, and without a collective: one drafter of each model of
    // GPU times products, the others wait for what it finds.
    at_once("time products", [this, row](DrafterRank& drafter) {
        if (products_.times_on(drafter.worker().device())) {
            drafter.rehearse(row, slots_[static_cast<std::size_t>(drafter.rank())]);
        }
    });
    for (std::size_t i = 0; i < targets_.size(); ++i) {
        targets_[i]->worker().call({"warm up"},
                                   [&] { targets_[i]->capture(row, slots_[i % slots_.size()]); });
    }
    at_once("warm up", [this, row](DrafterRank& drafter) {
        drafter.warm_up(row, slots_[static_cast<std::size_t>(drafter.rank())]);
    });
    gate_->warm_up(row, slots_);
    if (acceptance_) {
        acceptance_->warm_up();
    }
}

void Session::make_save_buffers() {
    // What the weights came from has done its work; it is as large as what follows.
    if (checkpoint_) {
        checkpoint_->optimizer = {};
    }
    run_.init.reset();
    gpu::Worker& worker = ranks_.front()->worker();
    worker.call([&] {
        save_buffers_ =
            make_snapshot_buffers(model::num_parameters(run_.draft.config), worker.device());
    });
}

void Session::set_weights() {
    at::Tensor flat_fp32;
    if (!checkpoint_ && run_.init) {
        flat_fp32 = run_.init->flat_fp32;
    } else if (!checkpoint_) {
        flat_fp32 = model::make_initial_weights(run_.draft.config,
                                                static_cast<std::uint64_t>(settings_.run.seed));
    }
    for (const auto& rank : ranks_) {
        rank->worker().call({"set the weights"}, [&] {
            if (checkpoint_) {
                rank->set_state(checkpoint_->optimizer);
            } else {
                rank->set_weights(flat_fp32);
            }
            synchronize_stream(rank->worker().device());
        });
    }
}

void Session::make_pipeline() {
    const data::Cursor start = checkpoint_ ? checkpoint_->progress.cursor : data::Cursor{};
    const RunLength length(settings_.train, run_.epoch_sizes);
    source_ = std::make_unique<EpochSource>(
        run_.train_ids,
        run_.epoch_ids,
        run_.mixture,
        run_.pack.seed,
        run_.pack.window,
        start,
        length.by_epochs() ? std::optional(settings_.train.epochs) : std::nullopt,
        end_);
    encoder_ = std::make_unique<DatasetEncoder>(*run_.training);
    packer_ = std::make_unique<StepRowPacker>(
        run_.pack, start, settings_.train.rows_per_step, static_cast<int>(ranks_.size()));
    std::vector<pipeline::Replica> replicas;
    for (const auto& target : targets_) {
        replicas.push_back(
            {.start = [this, replica = target.get()](
                          pipeline::RowPtr row, int slot, std::function<void()> done) {
                FeatureSlot& features = slots_[static_cast<std::size_t>(slot)];
                if (on_features_) {
                    done = [this, row, &features, done = std::move(done)] {
                        on_features_(*row, features);
                        done();
                    };
                }
                replica->start(std::move(row), features, std::move(done));
            }});
    }
    dispatcher_ = std::make_unique<pipeline::ReplicaDispatcher>(std::move(replicas), first_error_);
    pipeline_ = std::make_unique<pipeline::Pipeline>(
        pipeline::PipelineOptions{
            .num_slots = run_.plan.num_slots, .window = run_.pack.window, .num_threads = 2},
        *source_,
        *encoder_,
        *packer_,
        *dispatcher_,
        first_error_);
    whereabouts_.set_pipeline(pipeline_->board());
}

SessionResult Session::train(const std::string& folder, RunReport& report, StopSignals& signals) {
    Identity identity = identity_of(settings_, run_);
    tell_products(folder, report);
    CheckpointStore checkpoints(
        folder, settings_.checkpoint.keep, settings_.checkpoint.keep_drafts);
    CheckpointWriter writer(checkpoints,
                            save_buffers_,
                            first_error_,
                            {.on_saved = {}, .activity = &whereabouts_.add_thread("saver")});
    Trainer trainer({.pipeline = *pipeline_,
                     .ranks = ranks_,
                     .slots = slots_,
                     .evaluator = *evaluator_,
                     .acceptance = acceptance_.get(),
                     .gate = *gate_,
                     .checkpoints = checkpoints,
                     .writer = writer,
                     .report = report,
                     .signals = signals,
                     .loop = whereabouts_.loop(),
                     .length = RunLength(settings_.train, run_.epoch_sizes),
                     .identity = std::move(identity),
                     .products = products_.record(),
                     .settings = settings_,
                     .data_goes_on = end_.has_value(),
                     .on_row = on_row_},
                    checkpoint_ ? checkpoint_->progress : Progress{});
    try {
        const Progress progress = trainer.run();
        if (const std::vector<std::string> changes = kernels_.changes_since_seal();
            !changes.empty()) {
            log_warning(
                "after the start, where nothing should have been loaded, allocated or guessed: "
                "{}",
                fmt::join(changes, ", "));
        }
        return {.progress = progress, .wants_rows = trainer.wants_rows()};
    } catch (...) {
        const auto stopping = report.board().enter(report::RunState::Stopping, "after an error");
        // Whatever waits for this thread is woken, and the first error of the run is the one that
        // is told.
        first_error_.store(std::current_exception());
        first_error_.rethrow_if_failed();
        throw;
    }
}

}  // namespace

SessionResult run_session(PreparedRun run,
                          const TrainRequest& request,
                          const SessionParts& parts,
                          std::optional<Checkpoint> checkpoint,
                          std::optional<data::Cursor> end) {
    Session session(std::move(run), request, parts, std::move(checkpoint), end);
    return session.train(parts.folder, parts.report, parts.signals);
}

}  // namespace dflash::train
