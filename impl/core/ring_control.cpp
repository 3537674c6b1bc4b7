// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/ring_control.h"

#include <array>
#include <cstddef>

#include "base/cleanup.h"
#include "platform/pages.h"
#include "platform/shared_word.h"

namespace gpumem::core {
namespace {

constexpr std::array<char, 8> kMagic{'g', 'p', 'u', 'm', 'e', 'm', 'R', 'G'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kLine = 128;

// At the beginning of the file.
struct alignas(kLine) Head {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t slot_count;
  uint32_t place_count;
  uint32_t unused;
  uint64_t slot_size;
};

// Where the parts lie, which follows from the shape.
struct Layout {
  uint64_t published = sizeof(Head);
  uint64_t signals = published + sizeof(RingControl::Published);
  uint64_t messages = signals + sizeof(RingControl::Signals);
  uint64_t places;
  uint64_t recorded;
  uint64_t recorded_stride;  // in numbers; no two places share a line
  uint64_t handles;
  uint64_t size;

  explicit Layout(const RingShape& shape) {
    places = round_up(messages + shape.slot_count * sizeof(RingControl::Message), kLine);
    recorded = places + shape.place_count * sizeof(RingControl::Place);
    recorded_stride = round_up(shape.slot_count * sizeof(uint64_t), kLine) / sizeof(uint64_t);
    handles = recorded + shape.place_count * recorded_stride * sizeof(uint64_t);
    const uint64_t count = 1 + uint64_t{1 + shape.place_count} * shape.slot_count;
    size = round_up(handles + count * sizeof(gpumem_share_handle), platform::page_size());
  }
};

Error no_ring() {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "what the handle stands for is not a ring; pass the bytes of gpumem_ring_export() on as "
                    "they are");
}

}  // namespace

RingControl::RingControl(const RingShape& shape, void* view, platform::Descriptor file)
    : shape_(shape), view_(view), file_(std::move(file)) {
  const Layout layout(shape);
  const auto at = [view](uint64_t offset) { return static_cast<void*>(static_cast<char*>(view) + offset); };
  published_ = static_cast<Published*>(at(layout.published));
  signals_ = static_cast<Signals*>(at(layout.signals));
  messages_ = static_cast<Message*>(at(layout.messages));
  places_ = static_cast<Place*>(at(layout.places));
  recorded_ = static_cast<Number*>(at(layout.recorded));
  recorded_stride_ = layout.recorded_stride;
  handles_ = static_cast<gpumem_share_handle*>(at(layout.handles));
}

RingControl::~RingControl() { platform::unmap(view_, Layout(shape_).size); }

Result<std::shared_ptr<RingControl>> RingControl::create(const RingShape& shape) {
  const uint64_t size = Layout(shape).size;
  auto made = platform::memory_file(size, "gpumem-ring");
  if (!made) return made.error();
  platform::Descriptor file(*made);
  auto view = platform::map_file(file.get(), size, nullptr);
  if (!view) return view.error();
  Cleanup undo([&] { platform::unmap(*view, size); });
  auto control = std::make_shared<RingControl>(shape, *view, std::move(file));
  undo.dismiss();
  *static_cast<Head*>(*view) = {kMagic, kVersion, shape.slot_count, shape.place_count, 0, shape.slot_size};
  return control;
}

Result<std::shared_ptr<RingControl>> RingControl::open(int file_descriptor) {
  const platform::DescriptorFacts facts = platform::describe(file_descriptor);
  if (!facts.sealed || facts.size < platform::page_size()) return no_ring();
  auto view = platform::map_file(file_descriptor, facts.size, nullptr);
  if (!view) return view.error();
  Cleanup undo([&] { platform::unmap(*view, facts.size); });
  const Head head = *static_cast<const Head*>(*view);
  if (head.magic != kMagic) return no_ring();
  if (head.version > kVersion) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "the ring is of version %u, and this library knows version %u; use a library as new as "
                      "the producer's",
                      head.version, kVersion);
  }
  const RingShape shape{head.slot_count, head.place_count, head.slot_size};
  if (head.version != kVersion || !shape.is_valid() || Layout(shape).size != facts.size) return no_ring();
  auto control = std::make_shared<RingControl>(shape, *view, platform::Descriptor());
  undo.dismiss();
  return control;
}

void RingControl::wake_consumers() noexcept {
  ++signals_->published;
  platform::wake_all(signals_->published);
}

void RingControl::wake_producer() noexcept {
  ++signals_->released;
  platform::wake_all(signals_->released);
}

}  // namespace gpumem::core
