// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/peer/trial_lanes.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <system_error>
#include <utility>

#include "base/caught.h"

namespace gpumem::core {
namespace {

constexpr int kLanesMax = 16;  // of a user

}  // namespace

Result<void> TrialLanes::add(const Asker& asker, std::function<void()> trial) {
  std::erase_if(lanes_, [&](const auto& lane) { return lane.second.count == 0 && lane.first != asker; });
  const auto of_user = std::count_if(lanes_.begin(), lanes_.end(),
                                     [&](const auto& lane) { return lane.first.user == asker.user; });
  if (of_user >= kLanesMax && !lanes_.contains(asker)) {
    return make_error(GPUMEM_ERROR_BUSY,
                      "%d other processes of user %u have trials that have not ended; try again later",
                      kLanesMax, asker.user);
  }
  Lane& lane = lanes_[asker];
  try {
    lane.thread.start();
    lane.thread.add([trial = std::move(trial)]() -> std::optional<std::chrono::nanoseconds> {
      trial();
      return std::nullopt;
    });
  } catch (const std::system_error&) {
    return make_error(GPUMEM_ERROR_LIMIT_EXCEEDED, "the process cannot start a thread; %s", kThreadRemedy);
  }
  ++lane.count;
  return {};
}

void TrialLanes::is_over(const Asker& asker) noexcept {
  if (const auto lane = lanes_.find(asker); lane != lanes_.end()) --lane->second.count;
}

bool TrialLanes::is_this_thread() const {
  return std::any_of(lanes_.begin(), lanes_.end(),
                     [](const auto& lane) { return lane.second.thread.is_this_thread(); });
}

void TrialLanes::stop() noexcept {
  for (auto& [asker, lane] : lanes_)
    lane.thread.stop();
}

}  // namespace gpumem::core
