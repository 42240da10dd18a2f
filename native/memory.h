// Memory for weights, keys and values, in large pages; weights may lie in a file instead.
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace cutaway {

// Zeroed memory from the system, in 2 MB pages where it has them; or a file, of which memory is only a cache.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes);
  // A file of this size, to be read where it is mapped. Throws std::bad_alloc where it cannot be.
  Memory(size_t bytes, int file);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  bool is_file() const { return file_ >= 0; }
  // Write into the file, not where it is mapped: there a disk that fails or is full would end the process. Returns
  // 0, or the number of the error.
  int write(size_t at, const uint8_t* from, size_t bytes) const;
  // Give back the memory in which the system keeps this part of the file, and perhaps some before it.
  void drop_pages(const uint8_t* first, size_t bytes) const;
  // The same of this part alone, of which a few pages may stay. And begin to read it, without waiting.
  void drop_exactly(const uint8_t* first, size_t bytes) const;
  // This part is read when it is expected, and not because what is before it was.
  void expect_no_order(const uint8_t* first, size_t bytes) const;
  void expect_pages(const uint8_t* first, size_t bytes) const;

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
  int file_ = -1;
};

}  // namespace cutaway
