// Memory for weights, keys and values, in large pages.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace cutaway {

// Zeroed memory from the system, in 2 MB pages where it has them.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cutaway
