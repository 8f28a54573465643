// load MODULE: loads a component and runs it. This program knows nothing of RoboCache.
#include <dlfcn.h>

#include <cstdio>

int main(int, char** arguments) {
  void* module = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  void* run = module == nullptr ? nullptr : dlsym(module, "run_component");
  if (run == nullptr) {
    std::fprintf(stderr, "consumer: %s\n", dlerror());
    return 1;
  }
  return reinterpret_cast<int (*)()>(run)();
}
