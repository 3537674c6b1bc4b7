// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/object/warnings.h"

#include <algorithm>

namespace gpumem::core {

void Warnings::add(const char* cause, int32_t process, uint32_t user, const char* why, Time now,
                   std::vector<std::string>& lines) {
  add_left_out(now, lines);
  const Key key{cause, user};
  const bool fits = known_.size() < kKnownMax || known_.contains(key);
  Known& known = known_[fits ? key : Key{cause, kUnknown}];
  if (known.lines == 0) known.until = now + period;
  if (known.lines == kLines) {
    ++known.left_out;
    return;
  }
  ++known.lines;
  std::string line = cause;
  if (user != kUnknown) line += " process " + std::to_string(process) + " of user " + std::to_string(user);
  lines.push_back(line + ": " + why);
}

void Warnings::add_left_out(Time now, std::vector<std::string>& lines) {
  for (auto at = known_.begin(); at != known_.end();) {
    const auto& [key, known] = *at;
    if (known.until > now) {
      ++at;
      continue;
    }
    if (known.left_out != 0) {
      std::string line(key.first);
      if (key.second != kUnknown) line += " processes of user " + std::to_string(key.second);
      lines.push_back(line + ": " + std::to_string(known.left_out) + " times more");
    }
    at = known_.erase(at);
  }
}

Warnings::Time Warnings::next() const {
  Time next = Time::max();
  for (const auto& [key, known] : known_) {
    if (known.left_out != 0) next = std::min(next, known.until);
  }
  return next;
}

}  // namespace gpumem::core
