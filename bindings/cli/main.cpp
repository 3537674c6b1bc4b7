// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem: the command line, and what becomes of an error.
#include <CLI/CLI.hpp>
#include <iostream>

#include "commands.h"
#include "interrupt.h"
#include "library.h"
#include "output.h"

namespace gpumem::cli {

namespace {

int run(int argc, char** argv) {
  CLI::App app("Every kind of GPU memory, from the command line.", "gpumem");
  app.set_version_flag("--version", std::string("gpumem ") + gpumem_version_text());
  app.require_subcommand(1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("gpumem: ") + error.what() + " (gpumem --help tells more)\n";
  });
  const auto backend_option = [](CLI::App* command, std::string& backend) {
    command->add_option("--backend", backend, "Backend to use (default: GPUMEM_BACKEND, else any)")
        ->check(CLI::IsMember({"any", "cuda", "host"}));
  };

  InfoOptions info_options;
  CLI::App* info_command = app.add_subcommand("info", "Backends, devices, and what they can do");
  backend_option(info_command, info_options.backend);
  info_command->add_option("--device", info_options.device, "Only the device with this number");
  info_command->add_flag("--json", info_options.json, "Print JSON");

  MoveOptions move_options;
  CLI::App* move_command =
      app.add_subcommand("move", "Move a file to a device and back, check it, and time it");
  move_command->add_option("FILE", move_options.file, "File of any size")->required();
  move_command
      ->add_option("--kind", move_options.kinds, "Kind of host memory to use; repeatable (default: all)")
      ->check(CLI::IsMember({"pageable", "pinned", "write-combined", "registered", "mapped"}))
      ->allow_extra_args(false);
  backend_option(move_command, move_options.backend);
  move_command->add_option("--device", move_options.device, "Number of the device (default: 0)");
  move_command->add_option("--repeat", move_options.repeat, "Timed passes (default: 5)")
      ->check(CLI::Range(uint32_t{1}, uint32_t{10000}));
  move_command
      ->add_option("--chunk", move_options.chunk, "Bytes of one transfer (default: as fits the device)")
      ->transform(CLI::AsSizeValue(true))
      ->check(CLI::Range(uint64_t{4096}, uint64_t{1} << 40));
  move_command->add_flag("--json", move_options.json, "Print JSON");

  ErrorsOptions errors_options;
  CLI::App* errors_command = app.add_subcommand("errors", "What each status means, and what to do");
  errors_command->add_option("CODE", errors_options.code, "Number or name of one status (default: all)");
  errors_command->add_flag("--json", errors_options.json, "Print JSON");
  errors_command->add_flag("--markdown", errors_options.markdown, "Print a Markdown table")
      ->excludes("--json");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitSuccess : kExitUsage;
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
