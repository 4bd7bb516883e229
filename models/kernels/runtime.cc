// The few functions of a C++ runtime that the kernels need, so that the library depends on the C library alone.
//
// Building libc++ would take the compiler ten times as long as building the kernels. There are no exceptions: when
// memory runs out the process ends, as it does wherever Linux has promised more memory than there is.
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace {

void* allocate(std::size_t bytes) {
  void* memory = std::malloc(bytes ? bytes : 1);
  if (!memory) {
    std::fputs("nightjar: out of memory\n", stderr);
    std::abort();
  }
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return allocate(bytes); }
void* operator new[](std::size_t bytes) { return allocate(bytes); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
