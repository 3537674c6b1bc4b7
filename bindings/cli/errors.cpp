// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem errors: what each status means and what to do about it.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <iostream>
#include <stdexcept>

#include "commands.h"
#include "library.h"
#include "output.h"

namespace gpumem::cli {

namespace {

std::vector<gpumem_status_info> all() {
  std::vector<gpumem_status_info> list;
  gpumem_status status = 0;
  for (uint32_t i = 0; gpumem_status_enumerate(i, &status, nullptr) == GPUMEM_SUCCESS; ++i) {
    list.push_back(status_info(status));
  }
  return list;
}

// Whether `text` names the status: by its number, with or without the sign, or by its name, in any case, with
// or without the beginning that the names share.
bool names(std::string text, const gpumem_status_info& info) {
  int32_t number = 0;
  const char* end = text.data() + text.size();
  if (const auto result = std::from_chars(text.data(), end, number);
      result.ec == std::errc() && result.ptr == end) {
    return number == info.status || number == -info.status;
  }
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  const std::string name = info.name;
  return text == name || "GPUMEM_" + text == name || "GPUMEM_ERROR_" + text == name;
}

}  // namespace

int errors(const ErrorsOptions& options) {
  std::vector<gpumem_status_info> list = all();
  if (options.code) {
    std::erase_if(list, [&](const gpumem_status_info& info) { return !names(*options.code, info); });
    if (list.empty())
      throw std::runtime_error("no status is called " + shown(*options.code) + " (gpumem errors lists them)");
  }
  if (options.json) {
    Json json = Json::array();
    for (const auto& info : list) {
      json.push_back(
          {{"name", info.name}, {"code", info.status}, {"cause", info.cause}, {"remedy", info.remedy}});
    }
    print_json(json);
  } else if (options.markdown) {
    std::cout << "| Status | Code | Cause | Remedy |\n|---|---|---|---|\n";
    for (const auto& info : list) {
      std::cout << "| `" << info.name << "` | " << info.status << " | " << info.cause << " | " << info.remedy
                << " |\n";
    }
  } else {
    for (const auto& info : list) {
      std::cout << info.name << " (" << info.status << ")\n";
      std::cout << wrapped(info.cause, "  ") << wrapped(info.remedy, "  ");
    }
  }
  return kExitSuccess;
}

}  // namespace gpumem::cli
