#include "check.hpp"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s programs.txt\n", argv[0]);
    return 2;
  }
#if !defined(__SANITIZE_THREAD__)  // these have one thread
  test_kernels();
  test_device_reduce();
  test_calendars();
#endif
  test_heap();
  test_failures();
  test_messages();
  test_journal();
  test_relay();
  test_device_block(argv[1]);
  test_programs(argv[1]);
  test_hosts(argv[1]);
  test_hosts_failures(argv[1]);
  test_proxy(argv[1]);
  std::puts("all native tests passed");
  return 0;
}
