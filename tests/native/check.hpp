// The smallest test frame: CHECK fails with file, line and what it was about.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

inline std::string& context() {
  static thread_local std::string text;
  return text;
}

#define CHECK(condition)                                                                   \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      std::fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition,             \
                   context().c_str());                                                     \
      std::abort();                                                                        \
    }                                                                                      \
  } while (0)

void test_kernels();
void test_device_reduce();
void test_device_block(const char* path);
void test_heap();
void test_programs(const char* path);
void test_failures();
void test_hosts(const char* path);
void test_hosts_failures(const char* path);
void test_messages();
void test_calendars();
void test_journal();
void test_relay();
void test_proxy(const char* path);
