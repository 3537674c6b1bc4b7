// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem: the command line, and what becomes of an error.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <new>

#include "commands.h"
#include "interrupt.h"
#include "library.h"
#include "output.h"

namespace gpumem::cli {

namespace {

// What the parser makes of a wrong command is only that one is missing.
std::string usage_problem(const CLI::App* app, const CLI::Error& error) {
  std::string problem = error.what();
  if (const std::vector<std::string> unknown = app->remaining(); !unknown.empty()) {
    const std::string& first = unknown.front();
    problem = (first.rfind('-', 0) == 0 ? "there is no option " : "there is no command ") + first;
  } else if (app->get_subcommands().empty()) {
    problem = "a command is missing: info, move or errors";
  }
  return "gpumem: " + problem + " (gpumem --help tells more)\n";
}

int run(int argc, char** argv) {
  CLI::App app("GPU memory, from the command line.", "gpumem");
  app.set_version_flag("--version", std::string("gpumem ") + gpumem_version_text(),
                       "Print the version and exit");
  app.set_help_flag("-h,--help", "Print this help and exit");
  app.require_subcommand(1);
  app.get_formatter()->label("OPTIONS", "OPTION...");
  app.get_formatter()->label("SUBCOMMAND", "COMMAND");
  app.get_formatter()->label("Positionals", "Arguments");
  app.get_formatter()->column_width(20);
  app.failure_message(usage_problem);
  // Each value is named as people call it; the parser would list C++ types and ranges.
  const auto backend_option = [](CLI::App* command, std::string& backend) {
    command->add_option("--backend", backend, "any, cuda or host (default: GPUMEM_BACKEND, else any)")
        ->option_text("NAME")
        ->check(CLI::IsMember({"any", "cuda", "host"}));
  };

  InfoOptions info_options;
  CLI::App* info_command = app.add_subcommand("info", "Backends, devices, and what they can do");
  backend_option(info_command, info_options.backend);
  info_command->add_option("--device", info_options.device, "Only the device with this number")
      ->option_text("N");
  info_command->add_flag("--brief", info_options.brief, "One line for each backend and device");
  info_command->add_flag("--json", info_options.json, "Print JSON");

  MoveOptions move_options;
  CLI::App* move_command =
      app.add_subcommand("move", "Move a file to a device and back, check it, and time it");
  move_command->add_option("FILE", move_options.file, "File of any size, not empty")
      ->option_text(" ")
      ->required();
  move_command
      ->add_option("--kind", move_options.kinds,
                   "Kind of host memory, repeatable: pageable, pinned,\n"
                   "write-combined, registered, mapped (default: all)")
      ->option_text("KIND")
      ->check(CLI::IsMember({"pageable", "pinned", "write-combined", "registered", "mapped"}))
      ->allow_extra_args(false);
  backend_option(move_command, move_options.backend);
  move_command->add_option("--device", move_options.device, "Number of the device (default: 0)")
      ->option_text("N");
  move_command->add_option("--repeat", move_options.repeat, "Timed passes, up to 10000 (default: 5)")
      ->option_text("N")
      ->check(CLI::Range(uint32_t{1}, uint32_t{10000}));
  move_command
      ->add_option("--chunk", move_options.chunk,
                   "Size of one transfer, such as 64KiB or 2MB, at\n"
                   "least 4096 bytes (default: as fits the device)")
      ->option_text("SIZE")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::Range(uint64_t{4096}, uint64_t{1} << 40));
  move_command->add_flag("--json", move_options.json, "Print JSON");

  ErrorsOptions errors_options;
  CLI::App* errors_command = app.add_subcommand("errors", "What each status means, and what to do");
  errors_command->add_option("CODE", errors_options.code, "Number or name of a status (default: all)")
      ->option_text(" ");
  errors_command->add_flag("--json", errors_options.json, "Print JSON")->option_text(" ");
  errors_command->add_flag("--markdown", errors_options.markdown, "Print a Markdown table; not with --json")
      ->option_text(" ")
      ->excludes("--json");

  for (CLI::App* command : {info_command, move_command, errors_command})
    command->group("Commands");
  app.footer("gpumem COMMAND --help describes a command; man gpumem has everything.");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int status = app.exit(error) == 0 ? kExitSuccess : kExitUsage;
    flush_output();
    return status;
  }
  int status = kExitSuccess;
  if (info_command->parsed()) status = info(info_options);
  if (move_command->parsed()) status = move(move_options);
  if (errors_command->parsed()) status = errors(errors_options);
  flush_output();
  return status;
}

}  // namespace

}  // namespace gpumem::cli

int main(int argc, char** argv) {
  using namespace gpumem::cli;
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
    std::cerr << "gpumem: " << problem.what() << '\n';
    return kExitFailure;
  }
}
