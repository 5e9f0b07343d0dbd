// SPDX-License-Identifier: Apache-2.0
#include "app/runtime/devices_line.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cadenza/base/text.hpp"
#include "app/runtime/kernels_line.hpp"

namespace cadenza::app {

std::string describe_devices(std::span<const kernels::DeviceIdentity> devices) {
  std::vector<std::string> lines;
  for (const kernels::DeviceIdentity& device : devices) {
    lines.push_back(fmt::format("{} ({} multiprocessors, {:.1f} GiB)", device.name,
                                device.multiprocessors,
                                static_cast<double>(device.bytes) / (1 << 30)));
  }
  return describe_kernels(lines);
}

std::vector<SharedDevice> shared_devices(std::span<const kernels::DeviceIdentity> devices) {
  std::vector<SharedDevice> found;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const std::string& uuid = devices[rank].uuid;
    if (uuid.empty()) continue;
    auto same = std::ranges::find(found, uuid, &SharedDevice::uuid);
    if (same == found.end()) same = found.insert(found.end(), {uuid, {}});
    same->ranks.push_back(static_cast<int>(rank));
  }
  std::erase_if(found, [](const SharedDevice& device) { return device.ranks.size() == 1; });
  return found;
}

std::string describe_sharing(std::span<const SharedDevice> shared) {
  std::vector<std::string> parts;
  for (const SharedDevice& device : shared) {
    parts.push_back(
        fmt::format("ranks {} share device {}", number_list(device.ranks), device.uuid));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

}  // namespace cadenza::app
