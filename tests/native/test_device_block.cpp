// Blocks of the kernel on the host: every program on ranks with devices, in turns of one thread in random
// order, and with a thread for each block; and how calls end that cannot go well.
#include <fstream>
#include <sstream>

#include "calls.hpp"
#include "devices.hpp"

using namespace blinkrun;

namespace {

constexpr int32_t kPoison = -77;
enum class Where { kUser, kArena, kOutputInArena, kInPlace, kCount };

bool everyone(uint32_t, uint32_t) { return true; }
bool some(uint32_t a, uint32_t b) { return a == b || (2 * a + b) % 3 != 1; }  // make_programs.py

struct Suite {
  std::unique_ptr<Devices> devices;
  std::vector<std::pair<Collective, int32_t>> calls;
};

// Programs by their names and sizes, "device-star 3"; of those that begin so.
std::map<std::string, Suite> load_suites(const char* path, const std::string& prefix) {
  std::map<std::string, Suite> suites;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream in(line);
    std::string name;
    uint32_t size, rank;
    in >> name >> size >> rank;
    const std::string full = name + " " + std::to_string(size);
    if (full.rfind(prefix, 0) != 0) continue;
    std::vector<int32_t> words;
    for (int32_t word; in >> word;) words.push_back(word);
    Suite& suite = suites[full];
    if (!suite.devices) {
      std::vector<uint32_t> host_of(size);
      if (name.rfind("devicehosts", 0) == 0)
        for (uint32_t r = 0; r < size; ++r) host_of[r] = uint32_t(name[name.rfind('-') + 1 + r] - '0');
      const bool cut = name.rfind("devicecut", 0) == 0;
      suite.devices = std::make_unique<Devices>(host_of, cut ? some : everyone);
    }
    const Program program = decode_program(words.data(), words.size());
    suite.devices->load(rank, program);
    const std::pair<Collective, int32_t> call{program.collective, program.root};
    if (std::find(suite.calls.begin(), suite.calls.end(), call) == suite.calls.end())
      suite.calls.push_back(call);
  }
  CHECK(!suites.empty());
  return suites;
}

struct Numbers {
  std::vector<int32_t> memory;  // where it is not the arena
  int32_t *input, *output;
  uint64_t in, out;
};

// A rank's buffers, filled; the word behind each is poisoned too.
Numbers fill(Devices& devices, uint32_t i, Collective c, Where where, uint64_t count) {
  const uint64_t n = devices.size();
  const bool splits = c == Collective::kReducescatter || c == Collective::kAlltoall;
  const bool joins = c == Collective::kAllgather || c == Collective::kAlltoall;
  Numbers x;
  x.in = count * (splits ? n : 1);
  x.out = count * (joins ? n : 1);
  x.memory.assign(x.in + x.out + 2, kPoison);
  auto* heap = reinterpret_cast<int32_t*>(devices.rank(i).heap());
  x.input = where == Where::kArena ? heap : x.memory.data();
  x.output = where == Where::kUser ? x.memory.data() + x.in + 1 : heap + x.in + 1;
  if (where == Where::kInPlace) {
    x.input = heap + (c == Collective::kAllgather ? count * i : 0);
    x.output = heap + (c == Collective::kReducescatter ? count * i : 0);
  }
  CHECK((x.in + x.out + 2) * 4 <= kDeviceHeap);
  std::fill(heap, heap + x.in + x.out + 2, kPoison);
  for (uint64_t k = 0; k < x.in; ++k) x.input[k] = value(i, k);
  return x;
}

int32_t expected(Devices& devices, uint32_t i, Collective c, int32_t root, uint64_t count, uint64_t k) {
  const uint64_t n = devices.size();
  switch (c) {
    case Collective::kBroadcast: return value(uint64_t(root), k);
    case Collective::kAllgather: return value(k / count, k % count);
    case Collective::kAlltoall: return value(k / count, i * count + k % count);
    case Collective::kReducescatter: return sum_of(n, i * count + k);
    default: return sum_of(n, k);
  }
}

void check(Devices& devices, uint32_t i, const Numbers& x, Collective c, int32_t root, Where where,
           uint64_t count) {
  const bool takes = takes_output(c, root, i), in_place = where == Where::kInPlace;
  for (uint64_t k = 0; k < x.out; ++k) {
    if (takes) CHECK(x.output[k] == expected(devices, i, c, root, count, k));
    if (!takes) CHECK(x.output[k] == (in_place ? value(i, k) : kPoison));
  }
  for (uint64_t k = 0; !in_place && k < x.in; ++k) CHECK(x.input[k] == value(i, k));
  if (in_place) return;
  CHECK(x.output[x.out] == kPoison);
  CHECK(x.input[x.in] == kPoison);
}

uint32_t most_lanes(Devices& devices, const std::vector<DeviceCall>& calls) {
  uint32_t most = 1;
  for (uint32_t i = 0; i < devices.size(); ++i)
    for (const FlatProgram* program : calls[i].programs)
      if (program) most = std::max(most, program->num_channels * program->pieces);
  return most;
}

void call_all(Devices& devices, Collective c, int32_t root, Where where, uint64_t count, bool threads,
              uint64_t seed) {
  std::mt19937_64 random(seed);
  const uint32_t pieces = 1 + uint32_t(random() % 3), n = devices.size();
  const uint64_t eager = random() % 4 ? 256 : 1 << 20;  // the larger is beyond what slots hold
  std::vector<Numbers> numbers;
  std::vector<DeviceCall> calls;
  for (uint32_t i = 0; i < n; ++i) {
    numbers.push_back(fill(devices, i, c, where, count));
    calls.push_back(devices.call(i, c, root, pieces));
    calls[i].input = numbers[i].input;
    calls[i].output = numbers[i].output;
    calls[i].count = count;
    calls[i].eager_bytes = eager;
  }
  const uint32_t least = (most_lanes(devices, calls) + kDeviceLanes - 1) / kDeviceLanes;
  std::vector<uint32_t> blocks;
  for (uint32_t i = 0; i < n; ++i) blocks.push_back(least + uint32_t(random() % (threads ? 2 : 4)));
  context() = "collective " + std::to_string(int(c)) + " root " + std::to_string(root) + " of " +
              std::to_string(n) + " count " + std::to_string(count) + " where " +
              std::to_string(int(where)) + " pieces " + std::to_string(pieces) + " seed " +
              std::to_string(seed);
  std::vector<uint64_t> before;
  for (uint32_t i = 0; i < n; ++i) before.push_back(devices.calls(i));
  if (threads)
    devices.run_threads(calls, blocks, seed);
  else
    devices.run_turns(calls, blocks, seed);
  for (uint32_t i = 0; i < n; ++i) {
    CHECK(devices.rank(i).host->report.code == 0);
    CHECK(devices.calls(i) == before[i] + 1);
    CHECK(devices.rank(i).host->through == kFirstCall + before[i] + 1);
    check(devices, i, numbers[i], c, root, where, count);
  }
}

void run_suites(const char* path, const std::string& prefix) {
  uint64_t seed = 1;
  for (auto& [name, suite] : load_suites(path, prefix))
    for (auto [c, root] : suite.calls)
      for (int where = 0; where < int(Where::kCount); ++where) {
        if (Where(where) == Where::kInPlace && c == Collective::kAlltoall) continue;
        for (uint64_t count : {0, 1, 7, 65, 255, 1009, 9001}) {
          if (count == 9001 && seed % 3) count = 4093;
          ++seed;
          call_all(*suite.devices, c, root, Where(where), count, seed % 11 == 0, seed);
        }
      }
}

// ---- calls that end badly --------------------------------------------------------------------------

Devices some_devices(const char* path, const std::string& name) {
  return std::move(*load_suites(path, name).at(name).devices);
}

std::vector<DeviceCall> allreduces(Devices& devices, std::vector<std::vector<int32_t>>& x) {
  std::vector<DeviceCall> calls;
  for (uint32_t i = 0; i < devices.size(); ++i) {
    calls.push_back(devices.call(i, Collective::kAllreduce, 0, 2));
    calls[i].count = x[i].size();
    calls[i].input = calls[i].output = x[i].data();
  }
  return calls;
}

using Vectors = std::vector<std::vector<int32_t>>;

void works(Devices& devices) { call_all(devices, Collective::kAllreduce, 0, Where::kUser, 1009, false, 5); }

void clear(Devices& devices) {
  for (uint32_t i = 0; i < devices.size(); ++i) devices.rank(i).host->report.code = 0;
}

// Ranks that call differently are all told what each called; nothing moves, and the next call works.
void test_differ(const char* path) {
  Devices devices = some_devices(path, "device-chain 3");
  for (int what = 0; what < 4; ++what) {
    Vectors x(3, std::vector<int32_t>(5000, 1));
    auto calls = allreduces(devices, x);
    if (what == 0) calls[1].count = 4000;
    if (what == 1) calls[1].op = uint32_t(Op::kMax);
    if (what == 2) calls[1].scales = 7;
    if (what == 3) calls[1].collective = uint32_t(Collective::kBarrier);
    devices.run_turns(calls, {2, 1, 3}, uint64_t(what));
    for (uint32_t i = 0; i < 3; ++i) {
      const DeviceReport& report = devices.rank(i).host->report;
      CHECK(DeviceError(report.code) == DeviceError::kMismatch);
      CHECK(report.seq == kFirstCall + devices.calls(i));
      CHECK(report.size == 3 && report.channel == -1 && report.flag == 0);
      CHECK(report.descs[0].count == 5000 && !same_device_call(report.descs[0], report.descs[1]));
      CHECK(same_device_call(report.descs[0], report.descs[2]));
      CHECK(x[i] == std::vector<int32_t>(5000, 1));
    }
    clear(devices);
    works(devices);
  }
}

// The first of two errors counts until the host has read it.
void test_first_error_counts(const char* path) {
  Devices devices = some_devices(path, "device-star 2");
  uint64_t first = 0;
  for (uint64_t count : {100, 200}) {
    Vectors x(2, std::vector<int32_t>(count, 1));
    auto calls = allreduces(devices, x);
    calls[1].op = uint32_t(Op::kMin);
    devices.run_turns(calls, {1, 1}, 3);
    if (!first) first = devices.rank(0).host->report.seq;
    CHECK(devices.rank(0).host->report.seq == first);
    CHECK(devices.rank(0).host->report.desc.count == 100);
  }
}

// No program for the call: nothing moves on any rank, and the next call works.
void test_no_program(const char* path) {
  Devices devices = some_devices(path, "device-star 3");
  Vectors x(3, std::vector<int32_t>(50, 1));
  auto calls = allreduces(devices, x);
  for (DeviceCall& call : calls)
    for (auto& program : call.programs) program = nullptr;
  devices.run_turns(calls, {1, 2, 1}, 4);
  for (uint32_t i = 0; i < 3; ++i)
    CHECK(DeviceError(devices.rank(i).host->report.code) == DeviceError::kNoProgram);
  clear(devices);
  works(devices);
}

// Buffers in the arena, but no program that may use them there: the staged one does.
void test_staged_instead(const char* path) {
  Devices devices = some_devices(path, "device-chain 3");
  Vectors x(3);
  std::vector<DeviceCall> calls = allreduces(devices, x);
  for (uint32_t i = 0; i < 3; ++i) {
    auto* heap = reinterpret_cast<int32_t*>(devices.rank(i).heap());
    for (uint64_t k = 0; k < 3000; ++k) heap[k] = value(i, k);
    calls[i].programs[size_t(DeviceVariant::kDirect)] = nullptr;
    calls[i].programs[size_t(DeviceVariant::kOutputOnly)] = nullptr;
    calls[i].input = calls[i].output = heap;
    calls[i].count = 3000;
  }
  devices.run_turns(calls, {2, 2, 2}, 6);
  for (uint32_t i = 0; i < 3; ++i)
    for (uint64_t k = 0; k < 3000; ++k)
      CHECK(reinterpret_cast<int32_t*>(devices.rank(i).heap())[k] == sum_of(3, k));
}

// Ranks that are a call ahead of others find all as it was: eager areas, posts, slots and flags.
void test_ahead(const char* path, const std::string& name) {
  Devices devices = some_devices(path, name);
  const uint32_t n = devices.size();
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const std::vector<uint64_t> counts{5, 40, 1, 900, 13, 2001, 3, 9};
    std::vector<std::deque<DeviceCall>> queues(n);
    std::vector<Vectors> x(n);
    for (uint32_t i = 0; i < n; ++i)
      for (uint64_t c = 0; c < counts.size(); ++c) {
        x[i].emplace_back(counts[c]);
        for (uint64_t k = 0; k < counts[c]; ++k) x[i][c][k] = value(i, k + 77 * c);
      }
    for (uint32_t i = 0; i < n; ++i)
      for (uint64_t c = 0; c < counts.size(); ++c) {
        queues[i].push_back(devices.call(i, Collective::kAllreduce, 0, 1 + uint32_t(seed % 3)));
        DeviceCall& call = queues[i].back();
        call.count = counts[c];
        call.input = call.output = x[i][c].data();
        call.eager_bytes = 4096;
      }
    context() = name + " seed " + std::to_string(seed);
    devices.run_queues(queues, std::vector<uint32_t>(n, 1 + uint32_t(seed % 2)), seed);
    for (uint32_t i = 0; i < n; ++i)
      for (uint64_t c = 0; c < counts.size(); ++c)
        for (uint64_t k = 0; k < counts[c]; ++k) CHECK(x[i][c][k] == sum_of(n, k + 77 * c));
  }
}

// After an error that leaves ranks in the middle all later calls end at once, and are counted.
void check_broken(Devices& devices, uint32_t absent) {
  Vectors x(devices.size(), std::vector<int32_t>(50, 1));
  auto calls = allreduces(devices, x);
  std::vector<uint32_t> blocks(devices.size(), 2);
  blocks[absent] = 0;
  devices.run_turns(calls, blocks, 8);
  for (uint32_t i = 0; i < devices.size(); ++i)
    if (i != absent) CHECK(devices.rank(i).host->through == kFirstCall + 2);
}

// A rank that never comes is named when time is up; the other ranks' memory is as it was.
void test_never_comes(const char* path) {
  for (int threads = 0; threads < 2; ++threads) {
    Devices devices = some_devices(path, "devicecut-star 3");
    Vectors x(3, std::vector<int32_t>(5000, 1));
    auto calls = allreduces(devices, x);
    for (DeviceCall& call : calls) call.timeout_ns = 20'000'000;
    if (threads)
      devices.run_threads(calls, {2, 0, 2}, 1);
    else
      devices.run_turns(calls, {2, 0, 2}, 1);
    for (uint32_t i : {0u, 2u}) {
      const DeviceReport& report = devices.rank(i).host->report;
      CHECK(DeviceError(report.code) == DeviceError::kTimeout);
      CHECK(report.missing == 2 && report.channel == -1);
      CHECK(report.desc.count == 5000);
      CHECK(x[i] == std::vector<int32_t>(5000, 1));
    }
    check_broken(devices, 1);
  }
}

// The host's word ends every wait: at entry, and in the middle.
void test_abort(const char* path) {
  Devices devices = some_devices(path, "device-chain 3");
  Vectors x(3, std::vector<int32_t>(5000, 1));
  auto calls = allreduces(devices, x);
  uint64_t looks = 0;
  devices.run_turns(calls, {2, 2, 0}, 1, [&] {
    if (++looks == 300)
      for (uint32_t i = 0; i < 3; ++i) devices.rank(i).host->abort = 1;
  });
  for (uint32_t i : {0u, 1u}) {
    CHECK(DeviceError(devices.rank(i).host->report.code) == DeviceError::kAborted);
    CHECK(devices.rank(i).host->report.missing == 4);
  }
  check_broken(devices, 2);
}

// A rank that posts and then stands still: who waits for it says in which channel, chunk, and for whom.
void test_stands_still(const char* path) {
  Devices devices = some_devices(path, "device-chain 3");
  Vectors x(3, std::vector<int32_t>(5000, 1));
  auto calls = allreduces(devices, x);
  calls[0].timeout_ns = calls[1].timeout_ns = 20'000'000;
  Block still;
  still.begin(calls[2], HostMachine(0, 1));
  for (int turn = 0; turn < 4; ++turn) CHECK(still.turn() != DeviceTurn::kMove);
  devices.run_turns(calls, {2, 2, 0}, 9);
  for (uint32_t i : {0u, 1u}) {
    const DeviceReport& report = devices.rank(i).host->report;
    CHECK(DeviceError(report.code) == DeviceError::kTimeout);
    CHECK(report.missing == 0 && report.channel >= 0 && report.piece < 2);
    CHECK(StepKind(report.kind) == StepKind::kWait);
    CHECK(report.peer >= 0 && report.peer < 3);
  }
  CHECK(devices.rank(1).host->report.peer == 2 || devices.rank(0).host->report.peer == 2);
}

// More lanes than blocks take in turns: told, before anything is written where there is no room.
void test_no_room(const char* path) {
  Devices devices = some_devices(path, "device-star 2");
  Vectors x(2, std::vector<int32_t>(5000, 1));
  auto calls = allreduces(devices, x);
  std::vector<std::string> flats;
  for (uint32_t i = 0; i < 2; ++i) {
    flats.push_back(devices.rank(i).programs[{Collective::kAllreduce, 0, 2}][1]);
    reinterpret_cast<FlatProgram*>(flats[i].data())->pieces = kDeviceLanes + 1;
  }
  for (uint32_t i = 0; i < 2; ++i) {
    for (auto& program : calls[i].programs) program = nullptr;
    calls[i].programs[1] = reinterpret_cast<const FlatProgram*>(flats[i].data());
  }
  devices.run_turns(calls, {1, 1}, 1);
  for (uint32_t i = 0; i < 2; ++i) {
    CHECK(DeviceError(devices.rank(i).host->report.code) == DeviceError::kNoRoom);
    CHECK(x[i] == std::vector<int32_t>(5000, 1));
  }
}

// Hosts that call differently: the proxies say so, each host's ranks by themselves agree.
void test_hosts_differ(const char* path) {
  Devices devices = some_devices(path, "devicehosts-star-0011 4");
  devices.hosts_differ = true;
  Vectors x(4, std::vector<int32_t>(500, 1));
  auto calls = allreduces(devices, x);
  devices.run_turns(calls, {2, 2, 2, 2}, 1);
  for (uint32_t i = 0; i < 4; ++i) {
    const DeviceReport& report = devices.rank(i).host->report;
    CHECK(DeviceError(report.code) == DeviceError::kMismatch && report.flag == 1 && report.size == 2);
    CHECK(x[i] == std::vector<int32_t>(500, 1));
  }
  devices.hosts_differ = false;
  clear(devices);
  works(devices);
}

// What flatten refuses, it says why.
template <class Change> void refuse(const char* path, const std::string& why, uint32_t pieces, Change change) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("device-chain 3 0 ", 0) != 0) continue;
    std::istringstream in(line.substr(17));
    std::vector<int32_t> words;
    for (int32_t word; in >> word;) words.push_back(word);
    Program program = decode_program(words.data(), words.size());
    if (program.eager || !program.slots) continue;
    change(program);
    try {
      flatten(program, pieces, 0);
      CHECK(false);
    } catch (const std::invalid_argument& error) {
      context() = error.what();
      CHECK(std::string(error.what()).find(why) != std::string::npos);
    }
    return;
  }
  CHECK(false);
}

void test_flatten(const char* path) {
  refuse(path, "not encoded for devices", 1, [](Program& p) { p.version = 1; });
  refuse(path, "at least one piece", 0, [](Program&) {});
  refuse(path, "one piece of a channel, not 2", 2, [](Program& p) { p.eager = true; });
  refuse(path, "must be pipelined", 1, [](Program& p) { p.pipelined = false; });
  refuse(path, "needs 33 ranks on a host, a device has 32", 1, [](Program& p) { p.size = p.all = 33; });
  refuse(path, "flags, a device has 4096", 4096, [](Program& p) { p.flags = 2; });
  refuse(path, "73 operands of a step, a device has 72", 1, [](Program& p) { p.max_operands = 73; });
  refuse(path, "needs the size of its chunks", 1, [](Program& p) { p.all = 8; });
  refuse(path, "streams of messages", 1, [](Program& p) { p.streams.resize(1025); });
}

}  // namespace

void test_device_block(const char* path) {
  test_flatten(path);
  test_differ(path);
  test_first_error_counts(path);
  test_no_program(path);
  test_staged_instead(path);
  test_never_comes(path);
  test_abort(path);
  test_stands_still(path);
  test_no_room(path);
  test_hosts_differ(path);
  for (const char* name : {"device-star 3", "device-star 5", "devicecut-chain 5", "devicehosts-star-0011 4"})
    test_ahead(path, name);
  run_suites(path, "device");
}
