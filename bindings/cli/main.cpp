// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem: the command line, and what becomes of an error.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <iostream>
#include <memory>
#include <new>
#include <optional>
#include <string_view>

#include "commands.h"
#include "interrupt.h"
#include "library.h"
#include "output.h"
#include "path.h"

namespace gpumem::cli {

namespace {

// The command was given wrongly.
class UsageError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The parser only collects the values, so that what is said about a wrong one is written here.
using Values = std::vector<std::string>;

const std::string* only(const Values& values, const std::string& option) {
  if (values.size() > 1) throw UsageError(option + " is given twice");
  return values.empty() ? nullptr : &values.front();
}

// "a, b or c"
std::string choice(const Values& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text;
}

void require_one_of(const std::string& value, const std::string& option, const Values& names) {
  if (std::find(names.begin(), names.end(), value) == names.end())
    throw UsageError(option + " is " + choice(names) + ", not " + shown(value));
}

// The digits at the start of the text, which they leave; the largest number if they are too many.
std::optional<uint64_t> take_number(std::string_view& text) {
  uint64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec == std::errc::invalid_argument) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(result.ptr - text.data()));
  return result.ec == std::errc() ? number : UINT64_MAX;
}

uint32_t device_number(const std::string& value) {
  std::string_view text = value;
  const auto number = take_number(text);
  if (!number || !text.empty() || *number > UINT32_MAX)
    throw UsageError("--device takes a number from 0 to 4294967295, not " + shown(value));
  return static_cast<uint32_t>(*number);
}

uint32_t count_of(const std::string& value, const std::string& option, uint32_t most) {
  std::string_view text = value;
  const auto number = take_number(text);
  if (!number || !text.empty() || *number < 1 || *number > most)
    throw UsageError(option + " takes a number from 1 to " + std::to_string(most) + ", not " + shown(value));
  return static_cast<uint32_t>(*number);
}

uint32_t repeat_count(const std::string& value) { return count_of(value, "--repeat", 10000); }

uint32_t seconds(const std::string& value) {
  std::string_view text = value;
  const auto number = take_number(text);
  if (!number || !text.empty() || *number > 86400)
    throw UsageError("--timeout takes seconds from 0 to 86400, not " + shown(value));
  return static_cast<uint32_t>(*number);
}

uint64_t version_number(const std::string& value) {
  std::string_view text = value;
  const auto number = take_number(text);
  if (!number || !text.empty() || *number == 0)
    throw UsageError("--version takes a number from 1, not " + shown(value));
  return *number;
}

std::optional<std::string> copy_of(const std::string* value) {
  return value == nullptr ? std::nullopt : std::optional<std::string>(*value);
}

// Bytes of a unit such as MB or MiB, in any case and with or without the B; none if it is no unit.
std::optional<uint64_t> unit_size(std::string_view text) {
  constexpr std::string_view kPowers = "kmgt";
  std::string unit(text);
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  if (!unit.empty() && unit.back() == 'b') unit.pop_back();
  if (unit.empty()) return 1;
  const size_t power = kPowers.find(unit.front());
  if (power == std::string_view::npos || (unit.size() > 1 && unit.substr(1) != "i")) return std::nullopt;
  uint64_t size = 1;
  for (size_t i = 0; i <= power; ++i)
    size *= unit.size() > 1 ? uint64_t{1024} : uint64_t{1000};
  return size;
}

uint64_t chunk_size(const std::string& value) {
  constexpr uint64_t kLargest = uint64_t{1} << 40;
  std::string_view text = value;
  const auto number = take_number(text);
  while (!text.empty() && text.front() == ' ')
    text.remove_prefix(1);
  const auto unit = unit_size(text);
  if (!number || !unit) {
    throw UsageError(
        "--chunk takes a whole number, alone or with B, kB, MB, GB, TB, KiB, MiB, GiB or TiB, not " +
        shown(value));
  }
  if (*number > kLargest / *unit || *number * *unit < 4096)
    throw UsageError("--chunk takes 4096 bytes to 1 TiB, not " + shown(value));
  return *number * *unit;
}

const Values& command_names() {
  static const Values names = {"info", "move",  "share", "attach", "hub",
                               "keep", "bench", "why",   "trace",  "errors"};
  return names;
}

std::string describe(const CLI::App& app, const CLI::Error& error) {
  const auto unknown_option = [](const std::string& name) {
    return name.rfind('-', 0) == 0 && name.size() > 1;
  };
  if (const Values unknown = app.remaining(); !unknown.empty()) {
    return (unknown_option(unknown.front()) ? "there is no option " : "there is no command ") +
           shown(unknown.front());
  }
  const std::vector<CLI::App*> commands = app.get_subcommands();
  if (commands.empty()) return "a command is missing: " + choice(command_names());
  const CLI::App& command = *commands.front();
  if (const Values unknown = command.remaining(); !unknown.empty()) {
    return unknown_option(unknown.front()) ? "there is no option " + shown(unknown.front())
                                           : command.get_name() + " does not take " + shown(unknown.front());
  }
  const std::string problem = error.what();
  if (error.get_name() == "ArgumentMismatch") return problem.substr(0, problem.find(':')) + " needs a value";
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_items_expected_max() == 0 && option->count() > 0 && option->results().back() != "true")
      return option->get_name() + " takes no value";
  }
  return problem;
}

// The group of arguments that may be left out.
constexpr const char* kOptional = "Optional";

// Help in the width of the terminal.
class Help : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode /*mode*/) const override {
    Table arguments;
    Table options;
    Table commands;
    std::string usage = "Usage: " + name + " [OPTION...]";
    for (const CLI::Option* option : app->get_options()) {
      const std::string value = option->get_option_text().empty() ? "" : " " + option->get_option_text();
      (option->get_positional() ? arguments : options)
          .add({option->get_name(option->get_positional(), true) + value, option->get_description()});
      if (!option->get_positional()) continue;
      const bool optional = option->get_group() == kOptional;
      usage += (optional ? " [" : " ") + option->get_name(true) + (optional ? "]" : "");
    }
    for (const CLI::App* command : app->get_subcommands([](const CLI::App* /*any*/) { return true; }))
      commands.add({command->get_name(), command->get_description()});
    if (!commands.text().empty()) usage += " COMMAND";

    std::string text = wrapped(app->get_description()) + wrapped(usage);
    for (const auto& [title, table] : {std::pair("Arguments", &arguments), std::pair("Options", &options),
                                       std::pair("Commands", &commands)}) {
      if (const std::string lines = table->text(); !lines.empty())
        text.append("\n").append(title).append(":\n").append(lines);
    }
    return app->get_footer().empty() ? text : text + '\n' + wrapped(app->get_footer());
  }
};

int print_help(const CLI::App& app, const std::string* about) {
  const CLI::App* subject = &app;
  if (about != nullptr) {
    const auto found =
        app.get_subcommands([about](const CLI::App* command) { return command->get_name() == *about; });
    if (found.empty()) throw UsageError("there is no command " + shown(*about));
    subject = found.front();
  }
  const std::string name = about == nullptr ? app.get_name() : app.get_name() + " " + *about;
  std::cout << app.get_formatter()->make_help(subject, name, CLI::AppFormatMode::Normal);
  return kExitSuccess;
}

int complain_of_usage(const std::string& problem, const std::string& command) {
  complain(problem + " (gpumem " + (command.empty() ? "" : command + " ") + "--help tells more)");
  return kExitUsage;
}

// Says which command it was, also if that fails.
int parse_and_run(int argc, char** argv, std::string* named) {
  CLI::App app("GPU memory, from the command line.", "gpumem");
  app.formatter(std::make_shared<Help>());
  app.set_version_flag("--version", std::string("gpumem ") + gpumem_version_text(),
                       "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(1);
  const auto value_option = [](CLI::App* command, const std::string& name, Values& values,
                               const std::string& label, const std::string& description) {
    return command->add_option(name, values, description)->option_text(label)->allow_extra_args(false);
  };
  const std::string backend_text = "any, cuda or host (default: GPUMEM_BACKEND, else any)";
  Values backends;
  Values devices;
  bool json = false;

  InfoOptions info_options;
  CLI::App* info_command = app.add_subcommand("info", "Backends, devices, and what they can do");
  value_option(info_command, "--backend", backends, "NAME", backend_text);
  value_option(info_command, "--device", devices, "N", "Only the device with this number");
  info_command->add_flag("--all", info_options.all, "Also all facts of each device, and what it can do");
  info_command->add_flag("--json", json, "Print JSON, with all there is");

  MoveOptions move_options;
  Values files;
  Values repeats;
  Values chunks;
  CLI::App* move_command =
      app.add_subcommand("move", "Move a file to a device and back, check it, and time it");
  value_option(move_command, "FILE", files, "", "File of any size, not empty");
  value_option(move_command, "--kind", move_options.kinds, "KIND",
               "Kind of memory, repeatable: pageable, pinned, write-combined, registered, mapped, managed, "
               "range, buffer (default: all)");
  value_option(move_command, "--backend", backends, "NAME", backend_text);
  value_option(move_command, "--device", devices, "N", "Number of the device (default: 0)");
  value_option(move_command, "--repeat", repeats, "N", "Timed passes, up to 10000 (default: 5)");
  value_option(
      move_command, "--chunk", chunks, "SIZE",
      "Size of one transfer, such as 64KiB or 2MB, at least 4096 bytes (default: as fits the device)");
  move_command->add_flag("--json", json, "Print JSON");

  const std::string hub_text = "Path of the hub, or its name (default: default)";
  const std::string token_text = "File with the token of the hub, up to 256 bytes (default: none)";
  Values names;
  Values hubs;
  Values tokens;
  ShareOptions share_options;
  Values keepers;
  CLI::App* share_command = app.add_subcommand("share", "Publish the bytes of a file for other processes");
  value_option(share_command, "FILE", files, "", "File of any size, not empty");
  value_option(share_command, "--name", names, "NAME", "Name under which to publish it");
  value_option(share_command, "--hub", hubs, "PATH", hub_text);
  value_option(share_command, "--token-file", tokens, "FILE", token_text);
  value_option(share_command, "--keep", keepers, "PATH", "Publish in the keeper there; not with --hub");
  share_command->add_flag("--stay", share_options.stay, "With --keep: stay, and fail when the keeper ends");
  share_command->add_flag("--wait-stdin", share_options.wait_stdin,
                          "Stay, and end when the standard input does");
  value_option(share_command, "--backend", backends, "NAME", backend_text);
  value_option(share_command, "--device", devices, "N", "Number of the device (default: 0)");

  AttachOptions attach_options;
  Values timeouts;
  Values versions;
  CLI::App* attach_command =
      app.add_subcommand("attach", "Wait for what another process shares, and verify it");
  value_option(attach_command, "FILE", files, "", "File to write the bytes to (default: none)")
      ->group(kOptional);
  value_option(attach_command, "--name", names, "NAME", "Name under which it is published");
  value_option(attach_command, "--version", versions, "N", "Version of the name (default: the newest)");
  value_option(attach_command, "--hub", hubs, "PATH", hub_text);
  value_option(attach_command, "--token-file", tokens, "FILE", token_text);
  value_option(attach_command, "--timeout", timeouts, "S",
               "Seconds to wait for the hub and the name, up to 86400 (default: 10)");
  value_option(attach_command, "--backend", backends, "NAME", backend_text);

  Values actions;
  Values targets;
  CLI::App* hub_command = app.add_subcommand("hub", "What is published in a hub");
  value_option(hub_command, "ACTION", actions, "",
               "list: names, versions, sizes, publishers; withdraw: take a name out of a keeper")
      ->expected(1);  // what follows is the NAME
  value_option(hub_command, "NAME", targets, "", "Name to withdraw")->group(kOptional);
  value_option(hub_command, "--hub", hubs, "PATH", hub_text);
  value_option(hub_command, "--token-file", tokens, "FILE", token_text);
  value_option(hub_command, "--version", versions, "N", "Only this version, for withdraw (default: all)");
  hub_command->add_flag("--json", json, "Print JSON, for list");

  CLI::App* keep_command = app.add_subcommand("keep", "Keep what others publish, also after they have ended");
  bool store = false;
  value_option(keep_command, "--hub", hubs, "PATH", "Path of the keeper, or its name (default: default)");
  value_option(keep_command, "--token-file", tokens, "FILE",
               "File with a token that others must show, up to 256 bytes (default: none)");
  Values limits;
  value_option(keep_command, "--links", limits, "N", "Links at once, up to 65536 (default: 64)");
  keep_command->add_flag("--store", store, "Keep it in the service manager's store, too");

  BenchOptions bench_options;
  Values traces;
  Values sources;
  Values json_files;
  Values html_files;
  Values folders;
  CLI::App* bench_command =
      app.add_subcommand("bench", "Measure gpumem beside the driver or operating system, and make a report");
  value_option(bench_command, "--group", bench_options.groups, "GROUP",
               "Group of rows, repeatable (default: all)");
  bench_command->add_flag("--list", bench_options.list, "List the groups");
  bench_command->add_flag("--quick", bench_options.quick, "Fewer rows, and nothing larger than 64 MiB");
  value_option(bench_command, "--backend", backends, "NAME", backend_text);
  value_option(bench_command, "--repeat", repeats, "N",
               "Rows of calls for each side, up to 10000 (default: 15)");
  value_option(bench_command, "--traces", traces, "DIR",
               "Folder with recorded allocations, as CSV (default: only an example)");
  value_option(bench_command, "--with", bench_options.with, "FILE",
               "Results of peers, by tests/bench/peers.py, repeatable");
  value_option(bench_command, "--from", sources, "FILE",
               "Report on results that --json has written; measure nothing");
  value_option(bench_command, "--json", json_files, "FILE",
               "Write the results there; - is the standard output");
  value_option(bench_command, "--html", html_files, "FILE", "Write a report with plots there");
  value_option(bench_command, "--svg", folders, "DIR", "Write each plot into a file there");

  CLI::App* why_command = app.add_subcommand("why", "Who has memory, and what of it can go back");
  value_option(why_command, "FILE", files, "",
               "Snapshot of an instance, - is the standard input (default: the processes of this machine)")
      ->group(kOptional);
  why_command->add_flag("--json", json, "Print JSON; not with FILE, which is JSON");

  TraceOptions trace_options;
  Values outputs;
  Values pools;
  CLI::App* trace_command =
      app.add_subcommand("trace", "Record what a program does with memory, and replay it");
  value_option(
      trace_command, "ACTION", actions, "",
      "record: run the program behind -- and write its calls; show: sum them up; replay: make and free the "
      "same again; html: draw it")
      ->expected(1);  // what follows is the FILE
  value_option(trace_command, "FILE", files, "", "Trace to read")->group(kOptional);
  value_option(trace_command, "-o,--output", outputs, "FILE",
               "File to write, for record (default: gpumem.trace) and html");
  value_option(trace_command, "--backend", backends, "NAME", backend_text + ", for replay");
  value_option(trace_command, "--pool", pools, "KIND",
               "For replay, the kind of a pool that all memory is from: device, pinned, managed, pageable "
               "(default: as recorded)");
  trace_command->add_flag("--no-pool", trace_options.no_pool,
                          "For replay: make each block of a pool by itself");

  ErrorsOptions errors_options;
  Values codes;
  CLI::App* errors_command = app.add_subcommand("errors", "What each status means, and what to do");
  value_option(errors_command, "CODE", codes, "", "Number or name of a status (default: all)")
      ->group(kOptional);
  errors_command->add_flag("--json", json, "Print JSON");
  errors_command->add_flag("--markdown", errors_options.markdown, "Print a Markdown table; not with --json");

  Values topics;
  CLI::App* help_command = app.add_subcommand("help", "This help, or that of a command");
  value_option(help_command, "COMMAND", topics, "", "The command to describe")->group(kOptional);

  app.footer("gpumem COMMAND --help describes a command; man gpumem has everything.");
  for (CLI::App* command :
       {info_command, move_command, share_command, attach_command, hub_command, keep_command, bench_command,
        why_command, trace_command, errors_command, help_command})
    command->footer("");

  // The words of a program that is recorded are its own.
  Values program;
  if (argc > 1 && std::string_view(argv[1]) == "trace") {
    char** const end = argv + argc;
    char** const mark =
        std::find_if(argv, end, [](const char* word) { return std::string_view(word) == "--"; });
    if (mark != end) program.assign(mark + 1, end);
    argc = static_cast<int>(mark - argv);
  }

  const auto name_command = [&] {
    if (!app.get_subcommands().empty() && !help_command->parsed())
      *named = app.get_subcommands().front()->get_name();
  };
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    name_command();
    // Help and the version are thrown too.
    return error.get_exit_code() == 0 ? app.exit(error) : complain_of_usage(describe(app, error), *named);
  }
  name_command();
  if (help_command->parsed()) return print_help(app, only(topics, "COMMAND"));

  const std::string* backend = only(backends, "--backend");
  if (backend != nullptr) {
    require_one_of(*backend, "--backend", {"any", "cuda", "host"});
    info_options.backend = move_options.backend = share_options.backend = attach_options.backend = *backend;
    bench_options.backend = *backend;
  }
  if (const std::string* device = only(devices, "--device"))
    info_options.device = move_options.device = share_options.device = device_number(*device);
  info_options.json = move_options.json = errors_options.json = json;
  if (info_command->parsed()) return info(info_options);

  if (errors_command->parsed()) {
    if (json && errors_options.markdown) throw UsageError("--json and --markdown exclude each other");
    if (const std::string* code = only(codes, "CODE")) errors_options.code = *code;
    return errors(errors_options);
  }

  if (bench_command->parsed()) {
    if (const std::string* repeat = only(repeats, "--repeat")) bench_options.repeat = repeat_count(*repeat);
    bench_options.traces = copy_of(only(traces, "--traces"));
    bench_options.from = copy_of(only(sources, "--from"));
    bench_options.json = copy_of(only(json_files, "--json"));
    bench_options.html = copy_of(only(html_files, "--html"));
    bench_options.svg = copy_of(only(folders, "--svg"));
    const bool measures = !bench_options.groups.empty() || bench_options.list || bench_options.quick ||
                          !bench_options.backend.empty() || bench_options.repeat != 0 || bench_options.traces;
    const bool writes = bench_options.json || bench_options.html || bench_options.svg;
    if (bench_options.from && measures)
      throw UsageError("--from measures nothing: it goes with --with and what is written");
    if (bench_options.from && !writes) throw UsageError("--from needs --json, --html or --svg");
    if (!bench_options.with.empty() && !writes) throw UsageError("--with needs --json, --html or --svg");
    return bench(bench_options);
  }

  if (why_command->parsed()) {
    const WhyOptions why_options = {.file = copy_of(only(files, "FILE")), .json = json};
    if (why_options.file && json) throw UsageError("--json and FILE exclude each other: FILE is JSON");
    return why_options.file ? why(why_options) : why_machine(why_options);
  }

  if (trace_command->parsed()) {
    const std::string* action = only(actions, "ACTION");
    if (action == nullptr) throw UsageError("trace needs an ACTION: record, show, replay or html");
    require_one_of(*action, "ACTION", {"record", "show", "replay", "html"});
    const std::string* trace = only(files, "FILE");
    const std::string* output = only(outputs, "--output");
    const std::string* pool = only(pools, "--pool");
    if (pool != nullptr) require_one_of(*pool, "--pool", {"device", "pinned", "managed", "pageable"});
    if (pool != nullptr && trace_options.no_pool) throw UsageError("--pool and --no-pool exclude each other");
    const bool records = *action == "record";
    if (*action != "replay" && (backend != nullptr || pool != nullptr || trace_options.no_pool))
      throw UsageError("--backend, --pool and --no-pool are for trace replay");
    if (output != nullptr && !records && *action != "html")
      throw UsageError("--output is for trace record and html");
    if (output == nullptr && *action == "html") throw UsageError("trace html needs --output");
    if (records && (program.empty() || trace != nullptr))
      throw UsageError("trace record needs --, and behind it the PROGRAM with its arguments");
    if (!records && !program.empty()) throw UsageError("-- and a PROGRAM are for trace record");
    if (!records && trace == nullptr) throw UsageError("trace " + *action + " needs a FILE");
    trace_options.program = program;
    trace_options.output = output == nullptr ? "gpumem.trace" : *output;
    trace_options.file = trace == nullptr ? "" : *trace;
    trace_options.backend = backend == nullptr ? "" : *backend;
    trace_options.pool = copy_of(pool);
    if (records) return trace_record(trace_options);
    return *action == "show"     ? trace_show(trace_options)
           : *action == "replay" ? trace_replay(trace_options)
                                 : trace_html(trace_options);
  }

  const HubPlace hub = {copy_of(only(hubs, "--hub")), copy_of(only(tokens, "--token-file"))};
  const std::string* limit = only(limits, "--links");
  const uint32_t links = limit == nullptr ? 0 : count_of(*limit, "--links", 65536);
  if (keep_command->parsed()) return keep({.hub = hub, .links = links, .store = store});
  if (hub_command->parsed()) {
    const std::string* action = only(actions, "ACTION");
    if (action == nullptr) throw UsageError("hub needs an ACTION: list or withdraw");
    require_one_of(*action, "ACTION", {"list", "withdraw"});
    const std::string* target = only(targets, "NAME");
    const std::string* version = only(versions, "--version");
    if (*action == "list") {
      if (target != nullptr) throw UsageError("hub list does not take " + shown(*target));
      if (version != nullptr) throw UsageError("--version is for hub withdraw");
      return hub_list({.hub = hub, .json = json});
    }
    if (target == nullptr) throw UsageError("hub withdraw needs a NAME");
    if (json) throw UsageError("--json is for hub list");
    return hub_withdraw(
        {.hub = hub, .name = *target, .version = version == nullptr ? 0 : version_number(*version)});
  }

  const std::string* file = only(files, "FILE");
  if (file == nullptr && !attach_command->parsed())
    throw UsageError((share_command->parsed() ? "share" : "move") + std::string(" needs a FILE"));
  const std::string* name = only(names, "--name");
  if (share_command->parsed()) {
    if (name == nullptr) throw UsageError("share needs --name");
    share_options.file = *file;
    share_options.name = *name;
    share_options.hub = hub;
    if (const std::string* keeper = only(keepers, "--keep")) {
      if (hub.path) throw UsageError("--hub and --keep exclude each other");
      share_options.in_keeper = true;
      share_options.hub.path = *keeper;
    }
    if (share_options.stay && !share_options.in_keeper) throw UsageError("--stay needs --keep");
    return share(share_options);
  }
  if (attach_command->parsed()) {
    if (name == nullptr) throw UsageError("attach needs --name");
    attach_options.file = copy_of(file);
    attach_options.name = *name;
    attach_options.hub = hub;
    if (const std::string* timeout = only(timeouts, "--timeout")) attach_options.timeout = seconds(*timeout);
    if (const std::string* version = only(versions, "--version"))
      attach_options.version = version_number(*version);
    return attach(attach_options);
  }

  move_options.file = *file;
  for (const std::string& kind : move_options.kinds) {
    Values known_names;
    for (const Kind known : all_kinds())
      known_names.push_back(kind_name(known));
    require_one_of(kind, "--kind", known_names);
  }
  if (const std::string* repeat = only(repeats, "--repeat")) move_options.repeat = repeat_count(*repeat);
  if (const std::string* chunk = only(chunks, "--chunk")) move_options.chunk = chunk_size(*chunk);
  return move(move_options);
}

// What is opened later must not take the number of a standard stream that is closed. That can then be read to
// its end, and not be written.
void occupy_standard_streams() {
  int made = 0;
  while (made >= 0 && made <= STDERR_FILENO)
    made = open("/dev/null", O_RDONLY);
  if (made >= 0) close(made);
}

int run(int argc, char** argv) {
  int status = kExitSuccess;
  std::string command;
  try {
    status = parse_and_run(argc, argv, &command);
  } catch (const UsageError& problem) {
    status = complain_of_usage(problem.what(), command);
  }
  flush_output();
  return status;
}

}  // namespace

}  // namespace gpumem::cli

int main(int argc, char** argv) {
  using namespace gpumem::cli;
  occupy_standard_streams();
  // Where memory is short, unwinding fails too: a JSON document allocates while it is destroyed.
  std::set_new_handler([] {
    std::fputs("gpumem: out of memory\n", stderr);
    _exit(kExitFailure);
  });
  try {
    return run(argc, argv);
  } catch (const Interrupted&) {
    std::cerr << "gpumem: interrupted; everything was freed\n";
    return kExitInterrupted;
  } catch (const std::exception& problem) {
    complain(problem.what());
    return kExitFailure;
  }
}
