// SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception
// Processes that share at random, beside a model that knows what each call must return and each byte must be.
// Any of them may be killed at any step, also in the middle of a call. GPUMEM_WALKS says how many walks there
// are, GPUMEM_WALK_SEED where they begin, and GPUMEM_WALK_STEPS how long each is.
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <sstream>
#include <thread>

#include "process.h"
#include "walk_model.h"

namespace processes::walk {
namespace {

using namespace conformance;
using namespace std::chrono_literals;

class Walk {
 public:
  Walk(uint64_t seed, const std::string& folder, Peer& nursery)
      : seed_(seed), random_(seed), nursery_(nursery) {
    paths_[0] = folder + "/hub";
    paths_[1] = folder + "/keeper";
    address_ = "gpumem-walk-" + std::to_string(getpid()) + "-" + std::to_string(seed);
    socklen_t size = 0;
    const sockaddr_un address = abstract(address_.c_str(), &size);
    listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    EXPECT_EQ(bind(listener_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    patience(listener_);
  }
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;
  ~Walk() {
    for (int process = 0; process < kProcesses; ++process) {
      if (pids_.at(static_cast<size_t>(process)) > 0) kill_process(process);
    }
    close(listener_);
  }

  void run(int steps) {
    for (int process = 0; process < kProcesses; ++process)
      start(process);
    for (step_ = 1; step_ <= steps && !failed_; ++step_) {
      take_step();
      verify();
    }
    end();
  }
  int calls() const { return calls_; }

 private:
  using Numbers = std::vector<int>;

  uint64_t below(uint64_t count) { return random_() % count; }
  template <class List>
  auto one_of(const List& list) {
    return *std::next(std::begin(list), static_cast<std::ptrdiff_t>(below(std::size(list))));
  }
  std::string any_name() { return one_of(std::array<const char*, 4>{"a", "b", "c", "\xc3\xa4"}); }
  gpumem_access any_access() {
    return one_of(std::array<gpumem_access, 3>{0, GPUMEM_ACCESS_READ, GPUMEM_ACCESS_READWRITE});
  }

  static void patience(int socket) {
    const timeval time{60, 0};
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
  }

  // ---- talking to the processes ----

  template <class... Words>
  void say(const Words&... words) {
    std::ostringstream line;
    line << step_ << ": ";
    (line << ... << words);
    lines_.push_back(line.str());
    if (std::getenv("GPUMEM_WALK_TRACE") != nullptr) std::fprintf(stderr, "%s\n", lines_.back().c_str());
  }
  template <class... Words>
  void fail(const Words&... words) {
    if (std::exchange(failed_, true)) return;
    std::ostringstream text;
    (text << ... << words);
    text << "\nAgain: GPUMEM_WALKS=1 GPUMEM_WALK_SEED=" << seed_ << "; the last steps were:";
    for (size_t i = lines_.size() > 60 ? lines_.size() - 60 : 0; i < lines_.size(); ++i)
      text << "\n  " << lines_[i];
    ADD_FAILURE() << text.str();
  }

  int socket_of(int process) const { return sockets_.at(static_cast<size_t>(process)); }

  void tell(int process, const Order& order, int passed = -1) {
    ++calls_;
    iovec part{const_cast<Order*>(&order), sizeof order};
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (passed >= 0) {
      message.msg_control = room;
      message.msg_controllen = sizeof room;
      cmsghdr* const control = CMSG_FIRSTHDR(&message);
      control->cmsg_level = SOL_SOCKET;
      control->cmsg_type = SCM_RIGHTS;
      control->cmsg_len = CMSG_LEN(sizeof passed);
      std::memcpy(CMSG_DATA(control), &passed, sizeof passed);
    }
    if (sendmsg(socket_of(process), &message, MSG_NOSIGNAL) < 0)
      fail("process ", process, " has ended: ", strerror(errno));
  }
  Answer hear(int process) {
    Answer answer;
    ssize_t got = 0;
    do {
      got = recv(socket_of(process), &answer, sizeof answer, 0);
    } while (got < 0 && errno == EINTR);
    if (got != static_cast<ssize_t>(sizeof answer))
      fail("process ", process, got == 0 ? " has ended" : " does not answer");
    return answer;
  }
  Answer ask(int process, const Order& order, int passed = -1) {
    tell(process, order, passed);
    return hear(process);
  }
  // Compares what a call returned.
  bool expect(const Answer& answer, gpumem_status expected, const std::string& call) {
    say(call, " -> ", gpumem_status_name(answer.status));
    if (answer.status == expected) return answer.status == GPUMEM_SUCCESS;
    fail(call, " returned ", gpumem_status_name(answer.status), " (", answer.text, "), and not ",
         gpumem_status_name(expected));
    return false;
  }
  // What processes tell each other is seen a little later.
  template <class Ask>
  bool eventually(Ask ask) {
    for (int i = 0; i < 10'000; ++i) {
      if (failed_ || ask()) return true;
      std::this_thread::sleep_for(i < 20 ? 100us : 1ms);
    }
    return ask();
  }

  static Order order_of(What what, uint64_t number = 0) {
    Order order;
    order.what = what;
    order.number = number;
    return order;
  }
  static Order order_of(What what, int hub, const std::string& text, uint64_t value = 0) {
    Order order = order_of(what);
    order.hub = hub;
    order.value = value;
    std::snprintf(order.text, sizeof order.text, "%s", text.c_str());
    return order;
  }

  // ---- their lives ----

  void start(int process) {
    Errand errand;
    std::snprintf(errand.address, sizeof errand.address, "%s", address_.c_str());
    int32_t pid = -1;
    EXPECT_TRUE(send_bytes(nursery_.socket(), &errand, sizeof errand));
    EXPECT_TRUE(receive_bytes(nursery_.socket(), &pid, sizeof pid));
    if (pid <= 0) return fail("a process does not start");
    const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket < 0) return fail("a process does not start");
    patience(socket);
    pids_.at(static_cast<size_t>(process)) = pid;
    sockets_.at(static_cast<size_t>(process)) = socket;
    Party& party = model_.party(process);
    party.alive = true;
    ++party.life;
    say("process ", process, " starts");
    for (int hub = 0; hub < kHubs; ++hub) {
      if (kOwnerOf[hub] == process) open_hub(hub);
    }
  }
  void open_hub(int hub) {
    Order order = order_of(kOpenHub, hub, paths_[hub]);
    order.value = hub == 1 ? GPUMEM_HUB_KEEPER : 0;
    expect(ask(kOwnerOf[hub], order), GPUMEM_SUCCESS, "open hub " + std::to_string(hub));
  }
  int bury(int process, bool killed = false) {
    Errand errand;
    errand.bury = std::exchange(pids_.at(static_cast<size_t>(process)), 0);
    errand.kill = killed ? 1 : 0;
    int32_t status = -1;
    if (errand.bury <= 0) return status;
    EXPECT_TRUE(send_bytes(nursery_.socket(), &errand, sizeof errand));
    EXPECT_TRUE(receive_bytes(nursery_.socket(), &status, sizeof status));
    close(std::exchange(sockets_.at(static_cast<size_t>(process)), -1));
    return status;
  }
  void kill_process(int process) {
    say("process ", process, " is killed");
    const int status = bury(process, true);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
      fail("process ", process, " had ended before, with ", status);
  }

  // ---- what can be done ----

  Numbers alive(bool exporters_only = false) const {
    Numbers found;
    for (const int process : {0, 1, 3, 4}) {
      if (model_.party(process).alive && (!exporters_only || process < 3)) found.push_back(process);
    }
    return found;
  }
  Numbers objects_of(int process) const {
    Numbers found;
    for (size_t i = 0; i < model_.objects.size(); ++i) {
      if (model_.objects[i].owner == process && model_.objects[i].alive) found.push_back(static_cast<int>(i));
    }
    return found;
  }
  // The last ones, mostly alive, and sometimes of another process.
  std::optional<int> any_export(int owner = -1) {
    Numbers found;
    const size_t count = model_.exports.size();
    const bool any = below(5) == 0;
    for (size_t i = count > 30 ? count - 30 : 0; i < count; ++i) {
      const bool fits = owner < 0 || model_.object_of(static_cast<int>(i)).owner == owner;
      if (any || (fits && model_.exports[i].live)) found.push_back(static_cast<int>(i));
    }
    if (found.empty()) return std::nullopt;
    return one_of(found);
  }

  void make(int process) {
    if (objects_of(process).size() >= 4) return;
    Order order = order_of(kMake);
    order.value = below(2);
    order.seed = ++last_seed_;
    const Answer answer = ask(process, order);
    if (!expect(answer, GPUMEM_SUCCESS,
                name_of(process) + " makes " + (order.value != 0 ? "a buffer" : "memory")))
      return;
    model_.objects.push_back({process, answer.number, order.value != 0, true, order.seed});
  }
  void export_one(int process) {
    const Numbers objects = objects_of(process);
    if (objects.empty()) return make(process);
    const int number = one_of(objects);
    const Object& object = model_.objects.at(static_cast<size_t>(number));
    Order order = order_of(kExport, object.number);
    order.access = object.blocks || below(4) == 0 ? any_access() : 0;
    const gpumem_access access = order.access != 0 ? order.access : gpumem_access{GPUMEM_ACCESS_READWRITE};
    const bool refused = !object.blocks && access == GPUMEM_ACCESS_READ;
    const Answer answer = ask(process, order);
    if (!expect(answer, refused ? GPUMEM_ERROR_UNSUPPORTED : GPUMEM_SUCCESS,
                name_of(process) + " exports object " + std::to_string(number)))
      return;
    for (const Exported& known : model_.exports) {
      const bool equal = std::memcmp(&known.handle, &answer.handle, sizeof answer.handle) == 0;
      const bool same_export = known.live && known.object == number && known.access == access;
      if (equal != same_export) return fail("an export has the handle of another one, or not its own");
      if (same_export) return;
    }
    model_.exports.push_back({number, access, answer.handle, model_.party(process).life, true});
    say("  as export ", model_.exports.size() - 1);
  }
  void revoke(int process) {
    const auto number = any_export(process);
    if (!number) return;
    const bool known = model_.exported(*number).live && model_.object_of(*number).owner == process;
    Order order = order_of(kRevoke);
    order.handle = model_.exported(*number).handle;
    if (expect(ask(process, order), known ? GPUMEM_SUCCESS : GPUMEM_ERROR_NOT_FOUND,
               name_of(process) + " revokes export " + std::to_string(*number)))
      model_.end_export(*number);
  }
  void destroy(int process) {
    const Numbers objects = objects_of(process);
    if (objects.empty()) return;
    const int number = one_of(objects);
    const Object& object = model_.objects.at(static_cast<size_t>(number));
    const bool busy = !object.blocks && model_.is_held(number);
    if (expect(ask(process, order_of(kDestroy, object.number)), busy ? GPUMEM_ERROR_BUSY : GPUMEM_SUCCESS,
               name_of(process) + " destroys object " + std::to_string(number)))
      model_.end_object(number);
  }

  // An import of what the process was given, or of the bytes of any export.
  struct Wanted {
    int number = 0;
    gpumem_share_handle handle{};
    gpumem_access allowed = 0;
    gpumem_access access = 0;
    std::optional<Via> from;
  };
  std::optional<Wanted> any_import(int process, int owner = -1) {
    const Party& party = model_.party(process);
    Wanted wanted;
    wanted.access = below(2) == 0 ? 0 : any_access();
    if (!party.received.empty() && below(2) == 0) {
      const auto at = one_of(party.received);
      wanted.number = at.first.first;
      wanted.handle = at.second.handle;
      wanted.allowed = at.second.access;
      wanted.from = at.second.via;
      return wanted;
    }
    const auto number = any_export(owner);
    // Its own blocks a process could import too; here it does not.
    if (!number || (model_.object_of(*number).owner == process && model_.object_of(*number).blocks))
      return {};
    wanted.number = *number;
    wanted.handle = model_.exported(*number).handle;
    wanted.allowed = model_.exported(*number).access;
    return wanted;
  }
  static gpumem_status apply(Model& model, int process, const Wanted& wanted) {
    return model.import(process, wanted.number, wanted.allowed, wanted.access, wanted.from);
  }
  static Order order_of(const Wanted& wanted) {
    Order order = order_of(kImport);
    order.handle = wanted.handle;
    order.access = wanted.access;
    return order;
  }
  std::string text_of(int process, const Wanted& wanted) const {
    return name_of(process) + " imports export " + std::to_string(wanted.number) + " with access " +
           std::to_string(wanted.access) + (wanted.from ? ", as it came" : "");
  }
  void note_import(int process, uint64_t number) {
    Import& import = model_.party(process).imports.at(model_.last_import);
    if (import.number == 0) import.number = number;
    if (import.number != number) fail("the memory was mapped a second time");
    for (const auto& [key, other] : model_.party(process).imports) {
      if (&other != &import && other.number == number) fail("two processes granted it, and it is one import");
    }
  }
  void import(int process) {
    if (const auto wanted = any_import(process)) import(process, *wanted);
  }
  void import(int process, const Wanted& wanted) {
    const gpumem_status expected = apply(model_, process, wanted);
    const Answer answer = ask(process, order_of(wanted));
    if (expect(answer, expected, text_of(process, wanted))) note_import(process, answer.number);
  }
  std::optional<Key> any_imported(int process) {
    const auto& imports = model_.party(process).imports;
    if (imports.empty()) return std::nullopt;
    return one_of(imports).first;
  }
  void drop(int process) {
    const auto key = any_imported(process);
    if (!key || failed_) return;
    auto& imports = model_.party(process).imports;
    Import& import = imports.at(*key);
    expect(ask(process, order_of(kDrop, import.number)), GPUMEM_SUCCESS,
           name_of(process) + " destroys an import of object " + std::to_string(import.object));
    if (--import.count == 0) imports.erase(*key);
  }
  void write(int process) {
    const auto key = any_imported(process);
    if (!key) return;
    const Import& import = model_.party(process).imports.at(*key);
    const bool read_only = key->access == GPUMEM_ACCESS_READ;
    const bool dead = !key->blocks && model_.gone(import.claims.front().via);
    Order order = order_of(kWrite, import.number);
    order.seed = ++last_seed_;
    if (expect(ask(process, order),
               dead        ? GPUMEM_ERROR_PEER_GONE
               : read_only ? GPUMEM_ERROR_NO_ACCESS
                           : GPUMEM_SUCCESS,
               name_of(process) + " writes to object " + std::to_string(import.object)))
      model_.objects.at(static_cast<size_t>(import.object)).seed = order.seed;
  }
  void fill(int process) {
    const Numbers objects = objects_of(process);
    if (objects.empty()) return;
    Object& object = model_.objects.at(static_cast<size_t>(one_of(objects)));
    Order order = order_of(kFill, object.number);
    order.seed = ++last_seed_;
    if (expect(ask(process, order), GPUMEM_SUCCESS, name_of(process) + " fills its memory"))
      object.seed = order.seed;
  }
  void send_to(int process, int other) {
    const auto number = any_export(process);
    if (!number || other == process) return;
    const bool known = model_.exported(*number).live && model_.object_of(*number).owner == process;
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, (below(2) == 0 ? SOCK_STREAM : SOCK_SEQPACKET) | SOCK_CLOEXEC, 0, ends), 0);
    Order order = order_of(kSend);
    order.handle = model_.exported(*number).handle;
    if (expect(ask(process, order, ends[0]), known ? GPUMEM_SUCCESS : GPUMEM_ERROR_NOT_FOUND,
               name_of(process) + " sends export " + std::to_string(*number))) {
      const Answer answer = ask(other, order_of(kReceive), ends[1]);
      if (expect(answer, GPUMEM_SUCCESS, name_of(other) + " receives it")) {
        const Via via{process, model_.party(process).life, ++model_.last_number, -1};
        model_.party(other).received[{*number, via.number}] = {via, answer.handle,
                                                               model_.exported(*number).access};
      }
    }
    close(ends[0]);
    close(ends[1]);
  }

  // ---- hubs ----

  void connect(int process, int hub) {
    auto& link = model_.party(process).links[hub];
    if (link) return;
    const int owner = kOwnerOf[hub];
    const Answer answer = ask(process, order_of(kConnect, hub, paths_[hub]));
    const bool there = model_.party(owner).alive;
    if (expect(answer, there ? GPUMEM_SUCCESS : GPUMEM_ERROR_NOT_FOUND,
               name_of(process) + " connects to hub " + std::to_string(hub)))
      link = Via{owner, model_.party(owner).life, ++model_.last_number, hub};
  }
  void close_link(int process, int hub) {
    if (!model_.party(process).links[hub]) return;
    expect(ask(process, order_of(kCloseLink, hub, "")), GPUMEM_SUCCESS,
           name_of(process) + " closes its link to hub " + std::to_string(hub));
    model_.end_link(process, hub);
  }
  // A process and a hub in which it may publish.
  std::optional<std::pair<int, int>> any_publisher() {
    std::vector<std::pair<int, int>> found;
    for (const int process : alive()) {
      if (process == 0) found.emplace_back(0, 0);
      for (int hub = 0; hub < kHubs; ++hub) {
        // Few try where they may not.
        if (model_.party(process).links[hub] && (hub == 1 || below(8) == 0)) found.emplace_back(process, hub);
      }
    }
    if (found.empty()) return std::nullopt;
    return one_of(found);
  }
  struct Publication {
    int process = 0;
    int hub = 0;
    int number = 0;
    Order order;
  };
  std::optional<Publication> any_publication() {
    const auto publisher = any_publisher();
    if (!publisher) return std::nullopt;
    const auto number = any_export(publisher->first);
    if (!number) return std::nullopt;
    const bool own = publisher->second == 0 && publisher->first == 0;
    Publication made{publisher->first, publisher->second, *number,
                     order_of(own ? kPublish : kLinkPublish, publisher->second, any_name())};
    const uint64_t newest = model_.newest(made.hub, made.order.text);
    made.order.value = below(3) != 0 ? 0 : newest + below(4);
    made.order.keep = static_cast<uint32_t>(below(4));
    made.order.access = below(3) == 0 ? any_access() : 0;
    made.order.fingerprint = static_cast<uint8_t>(below(3));
    made.order.handle = model_.exported(*number).handle;
    return made;
  }
  static gpumem_status apply(Model& model, const Publication& made, uint64_t* version) {
    return model.publish(made.process, made.hub, made.order.text, made.number, made.order.value,
                         made.order.keep, made.order.access, made.order.fingerprint, version);
  }
  static std::string text_of(const Publication& made) {
    std::ostringstream text;
    text << name_of(made.process) << " publishes export " << made.number << " in hub " << made.hub << " as "
         << made.order.text << " version " << made.order.value << " keep " << made.order.keep << " access "
         << made.order.access << " fingerprint " << int{made.order.fingerprint};
    return text.str();
  }
  // One that the hub has, mostly.
  std::string any_name(int hub) {
    std::vector<std::string> there;
    for (const auto& [name, known] : model_.names[hub]) {
      if (!known.versions.empty()) there.push_back(name);
    }
    return there.empty() || below(4) == 0 ? any_name() : one_of(there);
  }
  uint64_t a_version(int hub, const std::string& name) {
    const uint64_t newest = model_.newest(hub, name);
    return newest > 1 ? newest - below(2) : newest;
  }
  void publish() {
    if (const auto made = any_publication()) publish(*made);
  }
  void publish(const Publication& made) {
    uint64_t version = 0;
    const gpumem_status expected = apply(model_, made, &version);
    const Answer answer = ask(made.process, made.order);
    if (expect(answer, expected, text_of(made)) && answer.number != version)
      fail("it became version ", answer.number, ", and not ", version);
  }
  void withdraw() {
    const auto publisher = any_publisher();
    if (!publisher) return;
    const auto [process, hub] = *publisher;
    const bool own = hub == 0 && process == 0;
    const std::string name = any_name(hub);
    Order order = order_of(own ? kWithdraw : kLinkWithdraw, hub, name);
    order.value = below(2) == 0 ? 0 : a_version(hub, name);
    const gpumem_status expected = model_.withdraw(process, hub, name, order.value);
    expect(ask(process, order), expected,
           name_of(process) + " withdraws " + name + " version " + std::to_string(order.value) +
               " from hub " + std::to_string(hub));
  }
  std::optional<std::pair<int, int>> any_link() {
    std::vector<std::pair<int, int>> found;
    for (const int process : alive()) {
      for (int hub = 0; hub < kHubs; ++hub) {
        if (model_.party(process).links[hub]) found.emplace_back(process, hub);
      }
    }
    if (found.empty()) return std::nullopt;
    return one_of(found);
  }
  void fetch() {
    const auto link = any_link();
    if (!link) return;
    const auto [process, hub] = *link;
    if (model_.newest(hub, any_name(hub)) == 0 && below(4) != 0) return publish();
    const std::string name = any_name(hub);
    Order order = order_of(kFetch, hub, name);
    order.value = below(2) == 0 ? 0 : a_version(hub, name);
    order.fingerprint = below(3) != 0 ? 0 : static_cast<uint8_t>(1 + below(2));
    const Via via = *model_.party(process).links[hub];
    const Version* const found = model_.find(hub, name, order.value, order.fingerprint);
    const gpumem_status expected = model_.gone(via)   ? GPUMEM_ERROR_PEER_GONE
                                   : found == nullptr ? GPUMEM_ERROR_NOT_FOUND
                                                      : GPUMEM_SUCCESS;
    const Answer answer = ask(process, order);
    std::ostringstream text;
    text << name_of(process) << " fetches " << name << " version " << order.value << " fingerprint "
         << int{order.fingerprint} << " from hub " << hub;
    if (!expect(answer, expected, text.str())) return;
    gpumem_share_info got = GPUMEM_SHARE_INFO_INIT;
    gpumem_share_info known = GPUMEM_SHARE_INFO_INIT;
    gpumem_share_get_info(&answer.handle, &got, nullptr);
    gpumem_share_get_info(&model_.exported(found->exported).handle, &known, nullptr);
    if (got.buffer_id != known.buffer_id || got.exporter_pid != known.exporter_pid || got.way != known.way ||
        got.size != known.size || got.access != found->access)
      return fail("another handle was fetched than the one of export ", found->exported);
    say("  and gets export ", found->exported);
    model_.party(process).received[{found->exported, via.number}] = {via, answer.handle, found->access};
    model_.note_fetch(process, via, found->exported, found->access);
  }
  void look_for() {
    const auto link = any_link();
    if (!link) return;
    const auto [process, hub] = *link;
    const std::string name = any_name(hub);
    Order order = order_of(kWait, hub, name);
    const uint64_t newest = model_.newest(hub, name);
    order.value = newest - (newest != 0 ? below(2) : 0);
    const bool gone = model_.gone(*model_.party(process).links[hub]);
    const Answer answer = ask(process, order);
    if (expect(answer,
               gone                   ? GPUMEM_ERROR_PEER_GONE
               : newest > order.value ? GPUMEM_SUCCESS
                                      : GPUMEM_NOT_READY,
               name_of(process) + " looks for " + name + " after " + std::to_string(order.value)) &&
        answer.entry.version != newest)
      fail("it saw version ", answer.entry.version, ", and not ", newest);
  }
  // Waits for a version, which comes; or the hub or the waiting process is killed.
  void wait() {
    const auto link = any_link();
    if (!link) return;
    const auto [process, hub] = *link;
    if (model_.gone(*model_.party(process).links[hub])) return;
    const auto made = any_publication();
    if (!made || made->process == process || made->hub != hub) return;
    uint64_t version = 0;
    Model with = model_;
    if (apply(with, *made, &version) != GPUMEM_SUCCESS) return;
    Order order = order_of(kWait, hub, made->order.text, model_.newest(hub, made->order.text));
    order.timeout_ns = 50'000'000'000;
    say(name_of(process), " waits for ", made->order.text, " after ", order.value);
    tell(process, order);
    pause();
    const uint64_t how = below(10);
    if (how == 0) {
      end_life(process);
      return;
    }
    if (how != 1) {
      publish(*made);
      const Answer seen = hear(process);
      if (expect(seen, GPUMEM_SUCCESS, name_of(process) + " has waited") && seen.entry.version != version)
        fail("it saw version ", seen.entry.version, ", and not ", version);
      return;
    }
    end_life(kOwnerOf[hub]);
    expect(hear(process), GPUMEM_ERROR_PEER_GONE, name_of(process) + " has waited");
  }

  // ---- ends ----

  void pause() { std::this_thread::sleep_for(std::chrono::microseconds(below(300))); }
  void end_life(int process) {
    kill_process(process);
    model_.kill(process);
  }
  // A process is killed in the middle of a call of its own.
  void kill_in_call() {
    const int process = one_of(alive());
    switch (below(6)) {
      case 0:
        if (const auto wanted = any_import(process)) {
          say(text_of(process, *wanted), " and");
          tell(process, order_of(*wanted));
        }
        break;
      case 1:
        if (const Numbers objects = objects_of(process); !objects.empty()) {
          say(name_of(process), " destroys something and");
          tell(process, order_of(kDestroy, model_.objects.at(static_cast<size_t>(one_of(objects))).number));
        }
        break;
      case 2:
        for (int hub = 0; hub < kHubs; ++hub) {
          if (hub == process || model_.party(process).links[hub]) continue;
          say(name_of(process), " connects and");
          tell(process, order_of(kConnect, hub, paths_[hub]));
          break;
        }
        break;
      case 3:
        if (const auto key = any_imported(process)) {
          say(name_of(process), " destroys an import and");
          tell(process, order_of(kDrop, model_.party(process).imports.at(*key).number));
        }
        break;
      default: {
        auto made = any_publication();
        for (int i = 0; i < 4 && (!made || made->hub != 1); ++i)
          made = any_publication();
        if (!made) break;
        say(text_of(*made), " and");
        tell(made->process, made->order);
        pause();
        // Either the version came, or it did not.
        Model with = model_;
        uint64_t version = 0;
        const bool possible = apply(with, *made, &version) == GPUMEM_SUCCESS;
        end_life(made->process);
        with.kill(made->process);
        if (possible && made->hub == 1) other_ = with;
        return;
      }
    }
    pause();
    end_life(process);
  }
  // A process is killed while another one imports from it.
  void kill_beside_call() {
    const int process = one_of(alive());
    const int other = below(3) == 0 ? 2 : static_cast<int>(below(2));
    if (other == process || !model_.party(other).alive) return;
    const auto wanted = any_import(process, other);
    if (!wanted) return;
    Model before = model_;
    Model after = model_;
    after.kill(other);
    const gpumem_status early = apply(before, process, *wanted);
    const gpumem_status late = apply(after, process, *wanted);
    before.kill(other);
    tell(process, order_of(*wanted));
    pause();
    kill_process(other);
    const Answer answer = hear(process);
    say(text_of(process, *wanted), " -> ", gpumem_status_name(answer.status));
    // An exporter that is ending can look like one that has closed its instance.
    const bool ending = answer.status == GPUMEM_ERROR_STALE_HANDLE && late == GPUMEM_ERROR_PEER_GONE;
    if (answer.status != early && answer.status != late && !ending)
      return fail("the import returned ", gpumem_status_name(answer.status), " (", answer.text, "), and not ",
                  gpumem_status_name(early), " or ", gpumem_status_name(late));
    Model without = model_;
    model_ = answer.status == early ? before : after;
    if (answer.status != GPUMEM_SUCCESS) return;
    const auto& imports = without.party(process).imports;
    const bool known = std::any_of(imports.begin(), imports.end(),
                                   [&](const auto& one) { return one.second.number == answer.number; });
    if (known || !wanted->from) return note_import(process, answer.number);
    // What came is imported with or without a grant. Nobody can see which.
    expect(ask(process, order_of(kDrop, answer.number)), GPUMEM_SUCCESS, name_of(process) + " destroys that");
    without.kill(other);
    without.party(process).received.erase({wanted->number, wanted->from->number});
    model_ = without;
  }

  void take_step() {
    for (int process = 0; process < kProcesses; ++process) {
      if (!model_.party(process).alive && below(2) == 0) start(process);
    }
    // What finds nothing to do is no step.
    for (const size_t before = lines_.size(); lines_.size() == before && !failed_;)
      try_step();
  }
  void try_step() {
    const Numbers living = alive();
    if (living.empty()) return start(static_cast<int>(below(kProcesses)));
    const int process = one_of(living);
    const int hub = process == 0 ? 1 : static_cast<int>(below(2));
    if (const auto& link = model_.party(process).links[hub]; link && model_.gone(*link) && below(2) == 0)
      return close_link(process, hub);
    const uint64_t dice = below(1000);
    if (dice < 60) return make(process);
    if (dice < 170) return export_one(process);
    if (dice < 190) return revoke(process);
    if (dice < 240) return destroy(process);
    if (dice < 440) return import(process);
    if (dice < 500) return drop(process);
    if (dice < 530) return write(process);
    if (dice < 550) return fill(process);
    if (dice < 590) return send_to(process, one_of(living));
    if (dice < 650) return connect(process, hub);
    if (dice < 660) return close_link(process, hub);
    if (dice < 780) return publish();
    if (dice < 810) return withdraw();
    if (dice < 900) return fetch();
    if (dice < 920) return look_for();
    if (dice < 965) return wait();
    if (dice < 975) return kill_in_call();
    if (dice < 985) return kill_beside_call();
    if (const int victim = one_of(std::array{0, 1, 2, 3, 4}); model_.party(victim).alive) end_life(victim);
  }

  // ---- what everybody must see ----

  static std::string name_of(int process) { return "process " + std::to_string(process); }

  void verify() {
    for (int process = 0; process < kProcesses && !failed_; ++process) {
      if (!model_.party(process).alive) continue;
      for (const auto& [key, import] : model_.party(process).imports)
        verify(process, key, import);
    }
    for (int hub = 0; hub < kHubs && !failed_; ++hub) {
      auto& link = model_.party(kWatcher).links[hub];
      if (link && model_.gone(*link)) close_link(kWatcher, hub);
      if (!model_.party(kOwnerOf[hub]).alive) continue;
      connect(kWatcher, hub);
      verify_hub(hub);
    }
  }
  void verify(int process, const Key& key, const Import& import) {
    const Object& object = model_.objects.at(static_cast<size_t>(import.object));
    Order order = order_of(kLook, import.number);
    order.seed = object.seed;
    const gpumem_status expected =
        !object.blocks && model_.gone(import.claims.front().via) ? GPUMEM_ERROR_PEER_GONE : GPUMEM_SUCCESS;
    Answer answer;
    const bool fits = eventually([&] {
      answer = ask(process, order);
      return answer.status == expected && answer.state == model_.state(import);
    });
    if (!fits || answer.count != import.count || (expected == GPUMEM_SUCCESS && answer.equal == 0)) {
      fail("the import of object ", import.object, " with access ", key.access, " in ", name_of(process),
           " reads ", gpumem_status_name(answer.status), " (", answer.text, "), has state ", answer.state,
           ", count ", answer.count, answer.equal != 0 ? ", the right" : ", other", " bytes; expected ",
           gpumem_status_name(expected), ", ", model_.state(import), ", ", import.count);
    }
  }
  // As text, so that a difference shows.
  std::string list_of(const Model& model, int hub) const {
    std::ostringstream text;
    text << model.links_of(hub) << " links";
    for (const auto& [name, known] : model.names[hub]) {
      for (const auto& [version, published] : known.versions) {
        gpumem_share_info info = GPUMEM_SHARE_INFO_INIT;
        gpumem_share_get_info(&model.exported(published.exported).handle, &info, nullptr);
        text << "; " << name << ' ' << version << " pid " << info.exporter_pid << " access "
             << published.access << " fingerprint " << int{published.fingerprint};
        if (hub == 1 && published.publisher == 0) text << " gone";
      }
    }
    return text.str();
  }
  std::string list_from(int hub) {
    std::ostringstream text;
    text << ask(kOwnerOf[hub], order_of(kHubInfo)).count << " links";
    for (uint64_t index = 0;; ++index) {
      const Answer answer = ask(kWatcher, order_of(kEntry, hub, "", index));
      if (answer.status == GPUMEM_ERROR_NOT_FOUND) return text.str();
      if (answer.status != GPUMEM_SUCCESS) return "cannot be listed: " + std::string(answer.text);
      const gpumem_entry_info& entry = answer.entry;
      text << "; " << entry.name << ' ' << entry.version << " pid " << entry.publisher_pid << " access "
           << entry.access << " fingerprint " << int{entry.fingerprint[0]};
      if (entry.publisher_gone != 0) text << " gone";
    }
  }
  void verify_hub(int hub) {
    // All that it was told is taken when the links of those who died are gone.
    if (hub == 1 && other_) {
      other_->parties.at(kWatcher) = model_.party(kWatcher);
      other_->last_number = model_.last_number;
      const std::string links = std::to_string(model_.links_of(hub)) + " links";
      std::string seen;
      eventually([&] { return (seen = list_from(hub)).rfind(links, 0) == 0; });
      if (eventually_is(hub, list_of(*other_, hub), list_of(model_, hub))) model_ = *other_;
      other_.reset();
    }
    const std::string expected = list_of(model_, hub);
    std::string seen;
    if (!eventually([&] { return (seen = list_from(hub)) == expected; }))
      fail("hub ", hub, " has ", seen, "\nand not ", expected);
  }
  // Which of the two it is in the end; neither is found out by the caller.
  bool eventually_is(int hub, const std::string& one, const std::string& other) {
    std::string seen;
    eventually([&] { return (seen = list_from(hub)) == one || seen == other; });
    return seen == one;
  }

  void drop_all(int process) {
    while (!model_.party(process).imports.empty() && !failed_)
      drop(process);
  }
  // Everybody releases what they have. Then nobody holds anything of another.
  void end() {
    for (int process = 0; process < kProcesses && !failed_; ++process) {
      if (!model_.party(process).alive) start(process);
    }
    for (int process = 0; process < kProcesses; ++process) {
      drop_all(process);
      const auto rest = model_.party(process).received;
      for (const auto& [from, received] : rest)
        import(process, Wanted{from.first, received.handle, received.access, 0, received.via});
      drop_all(process);
      for (int hub = 0; hub < kHubs; ++hub)
        close_link(process, hub);
    }
    for (int process = 0; process < kProcesses; ++process) {
      if (failed_) return;
      const Answer answer = ask(process, order_of(kEnd));
      say(name_of(process), " ends -> ", gpumem_status_name(answer.status));
      if (answer.status != GPUMEM_SUCCESS || answer.equal == 0)
        return fail(name_of(process), " ends with ", gpumem_status_name(answer.status), " and leaves ",
                    answer.text);
      if (const int status = bury(process); status != 0)
        return fail(name_of(process), " ends with wait status ", status);
      model_.kill(process);
    }
    for (const std::string& path : paths_) {
      if (std::filesystem::exists(path)) fail("the file ", path, " is left");
    }
  }

  const uint64_t seed_;
  std::mt19937_64 random_;
  Peer& nursery_;
  std::string address_;
  int listener_ = -1;
  std::string paths_[kHubs];
  std::array<pid_t, kProcesses> pids_{};
  std::array<int, kProcesses> sockets_{-1, -1, -1, -1, -1, -1};
  Model model_;
  std::optional<Model> other_;  // if what a killed process has published came
  uint32_t last_seed_ = 0;
  int step_ = 0;
  int calls_ = 0;
  bool failed_ = false;
  std::vector<std::string> lines_;
};

uint64_t setting(const char* name, uint64_t otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::strtoull(value, nullptr, 10) : otherwise;
}

TEST(ShareWalk, processes_that_may_die_see_what_a_model_predicts) {
  const uint64_t walks = setting("GPUMEM_WALKS", !on_host() || kSanitized ? 1 : 4);
  const uint64_t first = setting("GPUMEM_WALK_SEED", 1);
  const auto steps = static_cast<int>(setting("GPUMEM_WALK_STEPS", 150));
  std::string folder = testing::TempDir() + "share_walk_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  Peer nursery("walkers");
  const size_t files = Snapshot::take().file_descriptors.size();
  int calls = 0;
  for (uint64_t seed = first; seed < first + walks && !testing::Test::HasFailure(); ++seed) {
    Walk walk(seed, folder, nursery);
    walk.run(steps);
    calls += walk.calls();
  }
  EXPECT_EQ(Snapshot::take().file_descriptors.size(), files);
  EXPECT_TRUE(testing::Test::HasFailure() || std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
  std::printf("%" PRIu64 " walks of %d steps, from seed %" PRIu64 ": %d calls\n", walks, steps, first, calls);
}

}  // namespace
}  // namespace processes::walk
