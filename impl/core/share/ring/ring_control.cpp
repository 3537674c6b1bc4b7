// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
#include "core/share/ring/ring_control.h"

#include <array>
#include <cstddef>

#include "base/cleanup.h"
#include "platform/pages.h"
#include "platform/shared_word.h"

namespace gpumem::core {
namespace {

constexpr std::array<char, 8> kRingMagic{'g', 'p', 'u', 'm', 'e', 'm', 'R', 'G'};
constexpr uint32_t kRingVersion = 2;
constexpr uint64_t kLine = 128;

// At the beginning of the producer's file.
struct alignas(kLine) Head {
  std::array<char, 8> magic;
  uint32_t version;
  uint32_t slot_count;
  uint32_t place_count;
  uint32_t unused;
  uint64_t slot_size;
};

// Where the parts lie in the two files, which follows from the shape.
struct Layout {
  uint64_t published = sizeof(Head);
  uint64_t facts = published + sizeof(RingControl::Published);
  uint64_t messages = facts + sizeof(RingControl::Facts);
  uint64_t handles;
  uint64_t producer_size;

  uint64_t signals = 0;
  uint64_t places = signals + sizeof(RingControl::Signals);
  uint64_t recorded;
  uint64_t recorded_stride;  // in numbers; no two places share a line
  uint64_t consumers_size;

  explicit Layout(const RingShape& shape) {
    handles = round_up(messages + shape.slot_count * sizeof(RingControl::Message), kLine);
    const uint64_t count = 1 + uint64_t{1 + shape.place_count} * shape.slot_count;
    producer_size = round_up(handles + count * sizeof(gpumem_share_handle), platform::page_size());
    recorded = places + shape.place_count * sizeof(RingControl::Place);
    recorded_stride = round_up(shape.slot_count * sizeof(uint64_t), kLine) / sizeof(uint64_t);
    consumers_size =
        round_up(recorded + shape.place_count * recorded_stride * sizeof(uint64_t), platform::page_size());
  }
};

Error no_ring() {
  return make_error(GPUMEM_ERROR_INVALID_ARGUMENT,
                    "what the handle stands for is not a ring; pass the bytes of gpumem_ring_export() on as "
                    "they are");
}

}  // namespace

RingControl::RingControl(const RingShape& shape, void* said_by_producer, void* said_by_consumers)
    : shape_(shape), said_by_producer_(said_by_producer), said_by_consumers_(said_by_consumers) {
  const Layout layout(shape);
  const auto at = [](void* view, uint64_t offset) {
    return static_cast<void*>(static_cast<char*>(view) + offset);
  };
  published_ = static_cast<Published*>(at(said_by_producer, layout.published));
  facts_ = static_cast<Facts*>(at(said_by_producer, layout.facts));
  messages_ = static_cast<Message*>(at(said_by_producer, layout.messages));
  handles_ = static_cast<gpumem_share_handle*>(at(said_by_producer, layout.handles));
  signals_ = static_cast<Signals*>(at(said_by_consumers, layout.signals));
  places_ = static_cast<Place*>(at(said_by_consumers, layout.places));
  recorded_ = static_cast<Number*>(at(said_by_consumers, layout.recorded));
  recorded_stride_ = layout.recorded_stride;
}

RingControl::~RingControl() {
  const Layout layout(shape_);
  platform::unmap(said_by_producer_, layout.producer_size);
  platform::unmap(said_by_consumers_, layout.consumers_size);
}

Result<std::shared_ptr<RingControl>> RingControl::create(const RingShape& shape,
                                                         platform::Descriptors* files) {
  const Layout layout(shape);
  auto own = platform::published_file(layout.producer_size, "gpumem-ring");
  if (!own) return own.error();
  platform::Descriptor own_file(own->file_descriptor);
  Cleanup undo_own([&] { platform::unmap(own->view, layout.producer_size); });
  auto made = platform::memory_file(layout.consumers_size, "gpumem-ring-consumers");
  if (!made) return made.error();
  platform::Descriptor file(*made);
  auto view = platform::map_file(file.get(), layout.consumers_size, nullptr);
  if (!view) return view.error();
  Cleanup undo([&] { platform::unmap(*view, layout.consumers_size); });
  files->push_back(std::move(own_file));
  files->push_back(std::move(file));
  auto control = std::make_shared<RingControl>(shape, own->view, *view);
  undo.dismiss();
  undo_own.dismiss();
  *static_cast<Head*>(own->view) = {kRingMagic, kRingVersion,   shape.slot_count, shape.place_count,
                                    0,          shape.slot_size};
  return control;
}

Result<std::shared_ptr<RingControl>> RingControl::open(const platform::Descriptors& files) {
  if (files.size() != 2) return no_ring();
  const int own_file = files.front().get();
  const int file = files.back().get();
  const platform::DescriptorFacts own_facts = platform::describe(own_file);
  const platform::DescriptorFacts facts = platform::describe(file);
  if (!own_facts.sealed || own_facts.size < platform::page_size() || !facts.sealed) return no_ring();
  auto own = platform::map_file(own_file, own_facts.size, nullptr, platform::Protection::kRead);
  if (!own) return own.error();
  Cleanup undo_own([&] { platform::unmap(*own, own_facts.size); });
  const Head head = *static_cast<const Head*>(*own);
  if (head.magic != kRingMagic) return no_ring();
  if (head.version > kRingVersion) {
    return make_error(GPUMEM_ERROR_UNSUPPORTED,
                      "the ring is of version %u, and this library knows version %u; use a library as new as "
                      "the producer's",
                      head.version, kRingVersion);
  }
  const RingShape shape{head.slot_count, head.place_count, head.slot_size};
  if (head.version != kRingVersion || !shape.is_valid()) return no_ring();
  const Layout layout(shape);
  if (layout.producer_size != own_facts.size || layout.consumers_size != facts.size) return no_ring();
  auto view = platform::map_file(file, facts.size, nullptr);
  if (!view) return view.error();
  Cleanup undo([&] { platform::unmap(*view, facts.size); });
  auto control = std::make_shared<RingControl>(shape, *own, *view);
  undo.dismiss();
  undo_own.dismiss();
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
