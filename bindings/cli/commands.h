// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// The commands of the program: what each is told, and its entry. Each returns the exit status.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace gpumem::cli {

inline constexpr int kExitSuccess = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitInterrupted = 130;

struct InfoOptions {
  std::string backend;  // empty: as the environment says
  std::optional<uint32_t> device;
  bool brief = false;  // without capabilities
  bool json = false;
};
int info(const InfoOptions& options);

struct MoveOptions {
  std::string file;
  std::vector<std::string> kinds;  // empty: all
  std::string backend;             // empty: as the environment says
  uint32_t device = 0;
  uint32_t repeat = 5;
  uint64_t chunk = 0;  // bytes; 0: as fits the device
  bool json = false;
};
int move(const MoveOptions& options);

struct ErrorsOptions {
  std::optional<std::string> code;  // number or name; none: all
  bool json = false;
  bool markdown = false;
};
int errors(const ErrorsOptions& options);

}  // namespace gpumem::cli
