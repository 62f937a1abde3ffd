// SPDX-License-Identifier: Apache-2.0
#include "pinning.hpp"

#include <array>
#include <cstdlib>
#include <cuda_runtime_api.h>
#include <hwloc.h>
#include <memory>
#include <vector>

namespace dflash::gpu {

namespace {

struct DestroyTopology {
    void operator()(hwloc_topology_t topology) const noexcept { hwloc_topology_destroy(topology); }
};

struct FreeBitmap {
    void operator()(hwloc_bitmap_t bitmap) const noexcept { hwloc_bitmap_free(bitmap); }
};

using Topology = std::unique_ptr<hwloc_topology, DestroyTopology>;
using Bitmap = std::unique_ptr<hwloc_bitmap_s, FreeBitmap>;

Topology load_topology(bool with_pci) {
    hwloc_topology_t handle = nullptr;
    if (hwloc_topology_init(&handle) != 0) {
        return nullptr;
    }
    Topology topology(handle);
    if (with_pci) {
        hwloc_topology_set_io_types_filter(handle, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    }
    if (hwloc_topology_load(handle) != 0) {
        return nullptr;
    }
    return topology;
}

/// The parts of `allowed` that lie in the same core.
std::vector<Bitmap> split_by_core(hwloc_topology_t topology, hwloc_const_bitmap_t allowed) {
    const hwloc_obj_type_t type =
        hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
    std::vector<Bitmap> cores;
    hwloc_obj_t object = nullptr;
    while ((object = hwloc_get_next_obj_by_type(topology, type, object)) != nullptr) {
        Bitmap core(hwloc_bitmap_alloc());
        hwloc_bitmap_and(core.get(), object->cpuset, allowed);
        if (hwloc_bitmap_iszero(core.get()) == 0) {
            cores.push_back(std::move(core));
        }
    }
    return cores;
}

/// The parts of `allowed` near a GPU; empty if the system does not show its place on the bus.
Bitmap near_gpu(hwloc_topology_t topology, hwloc_const_bitmap_t allowed, int ordinal) {
    Bitmap near(hwloc_bitmap_alloc());
    std::array<char, 32> bus_id{};
    if (cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), ordinal) !=
        cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        return near;
    }
    const hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology, bus_id.data());
    const hwloc_obj_t host =
        device == nullptr ? nullptr : hwloc_get_non_io_ancestor_obj(topology, device);
    if (host != nullptr) {
        hwloc_bitmap_and(near.get(), host->cpuset, allowed);
    }
    return near;
}

}  // namespace

std::string pin_current_thread(const Device& device) {
    const Topology topology = load_topology(/*with_pci=*/device.is_cuda());
    const Bitmap allowed(hwloc_bitmap_alloc());
    if (topology == nullptr ||
        hwloc_get_cpubind(topology.get(), allowed.get(), HWLOC_CPUBIND_THREAD) != 0) {
        return {};
    }
    std::vector<Bitmap> cores = split_by_core(topology.get(), allowed.get());
    if (std::ssize(cores) < device.list_size) {
        return {};
    }
    const Bitmap chosen =
        device.is_cuda()
            ? near_gpu(topology.get(), allowed.get(), device.ordinal)
            : std::move(cores[static_cast<std::size_t>(device.ordinal) % cores.size()]);
    if (hwloc_bitmap_iszero(chosen.get()) != 0 ||
        hwloc_set_cpubind(topology.get(), chosen.get(), HWLOC_CPUBIND_THREAD) != 0) {
        return {};
    }
    char* text = nullptr;
    if (hwloc_bitmap_list_asprintf(&text, chosen.get()) < 0) {
        return {};
    }
    std::string units(text);
    std::free(text);  // NOLINT: hwloc allocates with malloc
    return units;
}

}  // namespace dflash::gpu
