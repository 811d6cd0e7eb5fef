// All bindings as one file for the compiler, which pybind11 costs seconds in every file that includes it.
#include "foreign.cpp"
#include "journal_module.cpp"
#include "module.cpp"
#include "p2p_module.cpp"
#include "proxy_module.cpp"
#include "watchdog.cpp"
