// Blocks of the kernel over several hosts, whose messages real proxies carry: an MPI between threads.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "check.hpp"
#include "cluster.hpp"
#include "devices.hpp"
#include "proxy.hpp"

using namespace blinkrun;

namespace {

const std::vector<uint32_t> kHosts{0, 0, 1, 1};

bool everyone(uint32_t, uint32_t) { return true; }

// Ranks on two hosts, each with a device and a proxy.
struct Job {
  Job(const char* path, bool buffers) : cluster(kHosts, buffers), mpi(uint32_t(kHosts.size()), buffers),
                                        devices(kHosts, everyone) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      std::istringstream in(line);
      std::string name;
      uint32_t size, rank;
      in >> name >> size >> rank;
      if (name != "devicehosts-star-0011") continue;
      std::vector<int32_t> words;
      for (int32_t word; in >> word;) words.push_back(word);
      devices.load(rank, decode_program(words.data(), words.size()));
    }
    for (uint32_t i = 0; i < devices.size(); ++i) {
      devices.control(i).seq = 0;  // as proxies count
      DeviceRank& rank = devices.rank(i);
      proxies.push_back(std::make_unique<Proxy>(cluster.groups[i], mpi.config(i), rank.host.get(),
                                                rank.area.get() + kDeviceHeapAt, kDeviceRings,
                                                kDeviceScratch));
    }
  }

  ~Job() {
    run([this](uint32_t i) { proxies[i].reset(); });
  }

  // In a thread for each rank.
  void run(const std::function<void(uint32_t)>& body) {
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < devices.size(); ++i) threads.emplace_back([&body, i] { body(i); });
    for (auto& thread : threads) thread.join();
  }

  DeviceCall allreduce(uint32_t i, std::vector<int32_t>& x) {
    DeviceCall call = devices.call(i, Collective::kAllreduce, 0, 2);
    call.input = call.output = x.data();
    call.count = x.size();
    call.timeout_ns = 20'000'000'000;
    return call;
  }

  void submit(uint32_t i, const DeviceCall& call) {
    const FlatProgram* flat = call.programs[size_t(DeviceVariant::kStaged)];
    auto& variants = devices.rank(i).programs[{Collective::kAllreduce, 0, 2}];
    const std::string& bytes = variants[size_t(DeviceVariant::kStaged)];
    CHECK(reinterpret_cast<const char*>(flat) == bytes.data());
    DeviceDesc desc{};
    desc.count = call.count;
    desc.collective = uint8_t(call.collective);
    desc.dtype = uint8_t(call.dtype);
    desc.op = uint8_t(call.op);
    desc.input = i;  // where buffers lie is each rank's own matter
    proxies[i]->submit(proxies[i]->load(bytes), desc);
  }

  // The kernel of a rank, in one block.
  DeviceError launch(uint32_t i, const DeviceCall& call) {
    Block block;
    block.begin(call, HostMachine(0, 1));
    for (DeviceTurn turn = DeviceTurn::kBusy; turn != DeviceTurn::kThrough;) {
      turn = block.turn();
      if (turn == DeviceTurn::kMove) host_move(block, call);
      if (turn == DeviceTurn::kIdle) std::this_thread::yield();
    }
    DeviceReport& report = devices.rank(i).host->report;
    const DeviceError error = DeviceError(report.code);
    report.code = 0;
    return error;
  }

  Cluster cluster;
  FakeMpi mpi;  // of the proxies' own communicator
  Devices devices;
  std::vector<std::unique_ptr<Proxy>> proxies;
};

std::vector<int32_t> ones(uint64_t count) { return std::vector<int32_t>(count, 1); }

void sums(Job& job, uint64_t count) {
  job.run([&](uint32_t i) {
    std::vector<int32_t> x = ones(count);
    const DeviceCall call = job.allreduce(i, x);
    job.submit(i, call);
    CHECK(job.launch(i, call) == DeviceError::kNone);
    CHECK(x == std::vector<int32_t>(count, int32_t(kHosts.size())));
  });
}

// All calls are told before the first kernel runs: more than there are places for verdicts.
void test_calls_ahead(Job& job) {
  constexpr uint32_t many = 3 * kDeviceVerdicts;
  job.run([&](uint32_t i) {
    std::vector<int32_t> x = ones(2000);
    const DeviceCall call = job.allreduce(i, x);
    for (uint32_t c = 0; c < many; ++c) job.submit(i, call);
    for (uint32_t c = 0; c < 4; ++c) CHECK(job.launch(i, call) == DeviceError::kNone);
    CHECK(x == std::vector<int32_t>(2000, 256));
    for (uint32_t c = 4; c < many; ++c) {
      std::fill(x.begin(), x.end(), 1);
      CHECK(job.launch(i, call) == DeviceError::kNone);
      CHECK(x == std::vector<int32_t>(2000, 4));
    }
  });
}

// One rank, or all of a host, call something else.
void test_different(Job& job, uint32_t first, uint32_t last) {
  std::vector<std::string> said(kHosts.size());
  job.run([&](uint32_t i) {
    std::vector<int32_t> x = ones(i >= first && i <= last ? 700 : 3000), before = x;
    const DeviceCall call = job.allreduce(i, x);
    job.submit(i, call);
    CHECK(job.launch(i, call) == DeviceError::kMismatch);
    CHECK(x == before);
    const uint64_t number = job.devices.control(i).seq;
    while (said[i].empty()) {  // a kernel may see it by its neighbour's post before its proxy does
      said[i] = job.proxies[i]->words(number);
      std::this_thread::yield();
    }
  });
  for (const std::string& text : said) {
    context() = text;
    CHECK(text == said[0]);
    CHECK(text.find("differs between ranks") != std::string::npos);
    CHECK(text.find(": allreduce of 700 int32 (sum)") != std::string::npos);
    CHECK(text.find(": allreduce of 3000 int32 (sum)") != std::string::npos);
  }
  sums(job, 5000);
}

// Whom a rank waits for, it can say.
void test_missing(Job& job) {
  std::vector<int32_t> x = ones(100);
  DeviceCall call = job.allreduce(0, x);
  job.submit(0, call);
  const uint64_t number = job.devices.control(0).seq + 1;
  CHECK((job.proxies[0]->missing(number) == std::vector<uint32_t>{1, 2, 3}));
  std::atomic<uint32_t> wrong{0};
  job.run([&](uint32_t i) {
    std::vector<int32_t> mine = ones(100);
    const DeviceCall own = job.allreduce(i, mine);
    if (i) job.submit(i, own);
    wrong += job.launch(i, own) != DeviceError::kNone;
  });
  CHECK(!wrong);
  CHECK(job.proxies[0]->missing(number).empty());
}

// A network that fails in the middle of a call ends it on all ranks, and the host's group with it.
void test_cut(const char* path) {
  Job job(path, false);
  sums(job, 3000);
  std::atomic<uint32_t> submitted{0};
  job.run([&](uint32_t i) {
    std::vector<int32_t> x = ones(200'000);
    const DeviceCall call = job.allreduce(i, x);
    job.submit(i, call);
    if (++submitted == kHosts.size()) job.mpi.cut();
    CHECK(job.launch(i, call) == DeviceError::kAborted);
  });
  for (auto& group : job.cluster.groups) CHECK(group->aborted());
}

// MPI may go on with what has begun: its memory outlives the proxies.
void test_left_behind(const char* path) {
  Job job(path, true);
  sums(job, 3000);
  job.mpi.hold();
  job.run([&job](uint32_t i) { job.proxies[i].reset(); });
  CHECK(job.mpi.go_on() == 12);  // heads, of every rank from every other
}

// What aborts the host's group ends waits of the kernels.
void test_abort(const char* path) {
  Job job(path, true);
  job.run([&](uint32_t i) {
    if (i == 3) return job.cluster.groups[3]->abort("rank 3 gives up");
    std::vector<int32_t> x = ones(1000);
    const DeviceCall call = job.allreduce(i, x);
    job.submit(i, call);
    while (!job.cluster.groups[i]->aborted()) job.cluster.groups[i]->network()->look();
    CHECK(job.launch(i, call) == DeviceError::kAborted);
  });
}

}  // namespace

void test_proxy(const char* path) {
  for (bool buffers : {true, false}) {
    Job job(path, buffers);
    for (uint64_t count : {1, 7, 511, 4099, 100'003}) {
      context() = "count " + std::to_string(count);
      sums(job, count);
    }
    test_calls_ahead(job);
    test_different(job, 3, 3);
    test_different(job, 0, 1);
    test_missing(job);
  }
  test_cut(path);
  test_left_behind(path);
  test_abort(path);
}
