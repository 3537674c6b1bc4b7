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
  bool all = false;  // with capabilities
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

struct HubPlace {
  std::optional<std::string> path;  // as gpumem_hub_desc takes it; none is the default
  std::optional<std::string> token_file;
};

struct ShareOptions {
  std::string file;
  std::string name;
  HubPlace hub;
  bool in_keeper = false;  // publish in the keeper there instead of opening a hub
  std::string backend;     // empty: as the environment says
  uint32_t device = 0;
  bool wait_stdin = false;  // end with the standard input too
  bool stay = false;        // with a keeper, until that ends
};
int share(const ShareOptions& options);

struct AttachOptions {
  std::optional<std::string> file;  // none: only verify
  std::string name;
  HubPlace hub;
  std::string backend;    // empty: as the environment says
  uint32_t timeout = 10;  // seconds
  uint64_t version = 0;   // 0: the newest
};
int attach(const AttachOptions& options);

struct HubOptions {
  HubPlace hub;
  bool json = false;
};
int hub_list(const HubOptions& options);

struct WithdrawOptions {
  HubPlace hub;
  std::string name;
  uint64_t version = 0;  // 0: all
};
int hub_withdraw(const WithdrawOptions& options);

struct KeepOptions {
  HubPlace hub;
  uint32_t links = 0;  // at once; 0: as many as the library lets in
  bool store = false;  // also in the store of the service manager
};
int keep(const KeepOptions& options);

struct BenchOptions {
  std::vector<std::string> groups;  // empty: all
  std::string backend;              // empty: as the environment says
  uint32_t repeat = 0;              // 0: as the benchmark program has it
  bool quick = false;
  bool list = false;
  std::optional<std::string> traces;
  std::optional<std::string> from;  // results that are there, instead of a run
  std::vector<std::string> with;    // results of peers
  std::optional<std::string> json;  // - is the standard output
  std::optional<std::string> html;
  std::optional<std::string> svg;  // a folder
};
int bench(const BenchOptions& options);

struct ErrorsOptions {
  std::optional<std::string> code;  // number or name; none: all
  bool json = false;
  bool markdown = false;
};
int errors(const ErrorsOptions& options);

struct WhyOptions {
  std::optional<std::string> file;  // with a snapshot; - is the standard input; none: this machine
  bool json = false;                // without a file
};
int why(const WhyOptions& options);
int why_machine(const WhyOptions& options);

struct TraceOptions {
  std::string file;
  std::vector<std::string> program;  // with its arguments
  std::string output;
  std::string backend;              // empty: as the environment says
  std::optional<std::string> pool;  // its kind of memory; all memory comes from one
  bool no_pool = false;
};
int trace_record(const TraceOptions& options);
int trace_show(const TraceOptions& options);
int trace_replay(const TraceOptions& options);
int trace_html(const TraceOptions& options);

}  // namespace gpumem::cli
