// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// gpumem info: which backends can be used and why not, the devices of one of them, and what each can do.
#include <array>
#include <cstdio>
#include <iostream>

#include "commands.h"
#include "library.h"
#include "output.h"

namespace gpumem::cli {

namespace {

struct BackendAnswer {
  std::string name;
  gpumem_probe_info info = GPUMEM_PROBE_INFO_INIT;
  gpumem_error error = GPUMEM_ERROR_INIT;
  bool usable() const { return !GPUMEM_FAILED(error.status); }
};

struct CapabilityAnswer {
  std::string name;  // with the peer's ordinal if it is about a pair
  gpumem_capability_info info = GPUMEM_CAPABILITY_INFO_INIT;
};

struct DeviceAnswer {
  gpumem_device_info info;
  uint64_t free_bytes = 0;
  std::vector<CapabilityAnswer> capabilities;
};

std::vector<BackendAnswer> ask_backends() {
  std::vector<BackendAnswer> answers;
  for (const gpumem_backend backend : {GPUMEM_BACKEND_CUDA, GPUMEM_BACKEND_HOST}) {
    BackendAnswer& answer = answers.emplace_back();
    answer.name = backend_name(backend);
    gpumem_instance_probe(backend, &answer.info, &answer.error);
  }
  return answers;
}

bool is_about_a_pair(gpumem_capability capability) {
  return capability == GPUMEM_CAPABILITY_PEER_ACCESS || capability == GPUMEM_CAPABILITY_PEER_ATOMICS;
}

std::vector<CapabilityAnswer> ask_capabilities(gpumem_instance instance, gpumem_device device,
                                               uint32_t ordinal, uint32_t device_count) {
  std::vector<CapabilityAnswer> answers;
  const auto ask = [&](gpumem_capability capability, gpumem_device peer, const std::string& of) {
    CapabilityAnswer& answer = answers.emplace_back();
    call(gpumem_device_get_capability, device, capability, peer, &answer.info);
    answer.name = answer.info.name + of;
  };
  gpumem_capability capability = 0;
  for (uint32_t i = 0; gpumem_capability_enumerate(i, &capability, nullptr) == GPUMEM_SUCCESS; ++i) {
    if (!is_about_a_pair(capability)) {
      ask(capability, nullptr, "");
      continue;
    }
    for (uint32_t peer = 0; peer < device_count; ++peer) {
      if (peer != ordinal)
        ask(capability, find_device(instance, peer), std::string(" ").append(std::to_string(peer)));
    }
  }
  return answers;
}

std::vector<DeviceAnswer> ask_devices(gpumem_instance instance, const InfoOptions& options) {
  const uint32_t count = instance_info(instance).device_count;
  std::vector<DeviceAnswer> answers;
  const uint32_t first = options.device.value_or(0);
  const uint64_t end = options.device ? uint64_t{first} + 1 : count;
  for (uint64_t number = first; number < end; ++number) {
    const auto ordinal = static_cast<uint32_t>(number);
    gpumem_device device = find_device(instance, ordinal);
    DeviceAnswer& answer = answers.emplace_back();
    answer.info = device_info(device);
    call(gpumem_device_get_memory, device, &answer.free_bytes, nullptr);
    if (options.all || options.json) answer.capabilities = ask_capabilities(instance, device, ordinal, count);
  }
  return answers;
}

std::string uuid_text(const gpumem_device_info& info) {
  std::string text;
  for (size_t i = 0; i < sizeof info.uuid; ++i) {
    std::array<char, 4> byte{};
    std::snprintf(byte.data(), byte.size(), "%02x", static_cast<unsigned>(info.uuid[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += byte.data();
  }
  return text;
}

std::string driver_text(int32_t version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string compute_text(const gpumem_device_info& info) {
  return std::to_string(info.compute_major) + "." + std::to_string(info.compute_minor);
}

std::string source_text(gpumem_answer_source source) {
  switch (source) {
    case GPUMEM_ANSWER_FROM_ATTRIBUTE:
      return "attribute";
    case GPUMEM_ANSWER_FROM_TRIAL:
      return "trial";
    case GPUMEM_ANSWER_FROM_CONFIGURATION:
      return "configuration";
    case GPUMEM_ANSWER_FROM_CONTRACT:
      return "contract";
    default:
      return std::to_string(source);
  }
}

Json value_json(const gpumem_capability_info& info) {
  if (info.type != GPUMEM_ANSWER_TYPE_TRI) return info.value;
  switch (info.value) {
    case GPUMEM_ANSWER_NO:
      return "no";
    case GPUMEM_ANSWER_YES:
      return "yes";
    case GPUMEM_ANSWER_EMULATED:
      return "emulated";
    default:
      return info.value;
  }
}

std::string value_text(const gpumem_capability_info& info) {
  if (info.type == GPUMEM_ANSWER_TYPE_BYTES) return size_text(info.value);
  const Json value = value_json(info);
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string or_dash(const std::string& text) { return text.empty() ? "-" : text; }

std::string memory_text(const DeviceAnswer& device) {
  return size_text(device.info.total_bytes) + ", " + size_text(device.free_bytes) + " free";
}

void print_backends(const std::vector<BackendAnswer>& backends) {
  std::cout << "gpumem " << gpumem_version_text() << "\n\nBackends\n";
  Table table;
  for (const BackendAnswer& answer : backends) {
    if (answer.usable()) {
      table.add({answer.name, "usable", answer.info.name});
    } else {
      table.add({answer.name, "unusable",
                 gpumem_status_name(answer.error.status) + std::string(": ") + answer.error.message});
    }
  }
  std::cout << table.text();
}

// A line for each device.
void print_devices(const std::string& opened, const std::vector<DeviceAnswer>& devices) {
  if (devices.empty()) return;
  std::cout << "\nDevices of " << opened << '\n';
  Table list;
  for (const DeviceAnswer& device : devices) {
    list.add({std::to_string(device.info.ordinal), memory_text(device),
              device.info.name + std::string(device.info.lost != 0 ? " (lost)" : "")});
  }
  std::cout << list.text() << '\n' << wrapped("gpumem info --all tells what each can do, and why not.");
}

void print_all(const std::string& opened, const std::vector<DeviceAnswer>& devices) {
  for (const DeviceAnswer& device : devices) {
    const gpumem_device_info& info = device.info;
    std::cout << '\n'
              << wrapped("Device " + std::to_string(info.ordinal) + " of " + opened + ": " + info.name +
                         (info.lost != 0 ? " (lost)" : ""));
    Table facts;
    facts.add({"uuid", uuid_text(info)});
    facts.add({"pci id", or_dash(info.pci_id)});
    facts.add({"numa node", info.numa_node < 0 ? "-" : std::to_string(info.numa_node)});
    facts.add({"memory", memory_text(device)});
    if (info.compute_major != 0) facts.add({"compute", compute_text(info)});
    std::cout << facts.text();
    std::cout << '\n';
    Table capabilities({"CAPABILITY", "VALUE", "FROM", "REASON"});
    for (const CapabilityAnswer& answer : device.capabilities) {
      capabilities.add(
          {answer.name, value_text(answer.info), source_text(answer.info.source), answer.info.reason});
    }
    std::cout << capabilities.text();
  }
}

Json backend_json(const BackendAnswer& answer) {
  Json json = {{"name", answer.name}, {"usable", answer.usable()}};
  if (answer.usable()) {
    json["description"] = answer.info.name;
    json["device_count"] = answer.info.device_count;
    json["driver"] = answer.info.driver_version == 0 ? Json() : Json(driver_text(answer.info.driver_version));
  } else {
    json["status"] = gpumem_status_name(answer.error.status);
    json["code"] = answer.error.status;
    json["reason"] = answer.error.message;
    json["remedy"] = status_info(answer.error.status).remedy;
    json["native"] = answer.error.native_name;
  }
  return json;
}

Json device_json(const DeviceAnswer& device) {
  const gpumem_device_info& info = device.info;
  Json capabilities = Json::array();
  for (const CapabilityAnswer& answer : device.capabilities) {
    capabilities.push_back({{"name", answer.name},
                            {"value", value_json(answer.info)},
                            {"source", source_text(answer.info.source)},
                            {"status", gpumem_status_name(answer.info.status)},
                            {"reason", answer.info.reason}});
  }
  Json json = {{"ordinal", info.ordinal},
               {"name", info.name},
               {"uuid", uuid_text(info)},
               {"pci_id", *info.pci_id == '\0' ? Json() : Json(info.pci_id)},
               {"numa_node", info.numa_node < 0 ? Json() : Json(info.numa_node)},
               {"total_bytes", info.total_bytes},
               {"free_bytes", device.free_bytes},
               {"compute_capability", info.compute_major == 0 ? Json() : Json(compute_text(info))},
               {"lost", info.lost != 0},
               {"capabilities", capabilities}};
  return json;
}

void print_all_json(const std::vector<BackendAnswer>& backends, const std::string& opened,
                    const std::vector<DeviceAnswer>& devices) {
  Json json = {{"version", gpumem_version_text()},
               {"backends", Json::array()},
               {"backend", opened.empty() ? Json() : Json(opened)},
               {"devices", Json::array()}};
  for (const BackendAnswer& answer : backends)
    json["backends"].push_back(backend_json(answer));
  for (const DeviceAnswer& device : devices)
    json["devices"].push_back(device_json(device));
  print_json(json);
}

}  // namespace

int info(const InfoOptions& options) {
  const std::vector<BackendAnswer> backends = ask_backends();
  std::string opened;
  std::vector<DeviceAnswer> devices;
  std::string problem;
  try {
    gpumem_instance instance = open_instance(options.backend);
    opened = backend_name(instance_info(instance).backend);
    devices = ask_devices(instance, options);
  } catch (const CallFailed& failed) {
    problem = failed.what();
  }
  // Also after a failure: the list of the backends says why.
  if (options.json) {
    print_all_json(backends, opened, devices);
  } else {
    print_backends(backends);
    (options.all ? print_all : print_devices)(opened, devices);
  }
  if (problem.empty()) return kExitSuccess;
  flush_output();
  complain(problem);
  return kExitFailure;
}

}  // namespace gpumem::cli
