// Bytes of a file, or a part of them, that are read where they are wanted and not mapped: the system ends a process that
// touches mapped bytes which are gone, where a read is an error that somebody can be told.
#pragma once
#include <memory>
#include <stdexcept>
#include <string>

#include "platform.h"

namespace cutaway {

// What was opened cannot be read any more, or is not what was opened: the file, and what is said of it behind its name.
struct FileError : std::runtime_error {
  FileError(std::string file, const std::string& message) : std::runtime_error(message), name(std::move(file)) {}
  std::string name;
};

class FileBytes {
 public:
  // All of a file, which has a descriptor of its own from now on. name: for errors.
  FileBytes(int file, std::string name);
  FileBytes part(size_t first, size_t end) const;
  size_t size() const { return size_; }
  // Throws FileError where the file has fewer bytes by now, or was written to since it was opened.
  void read(size_t first, uint8_t* out, size_t bytes) const { check(try_read(first, out, bytes)); }
  // The two halves of it, of which the second can follow several of the first: it looks for what came between, too.
  int try_read(size_t first, uint8_t* out, size_t bytes) const;  // 0, or what is wrong
  void check(int wrong) const;
  // They will soon be read: begin, and do not wait.
  void expect(size_t first, size_t bytes) const;

 private:
  struct Opened {
    Opened(int file, std::string name);
    ~Opened() { platform::close(file); }
    Opened(const Opened&) = delete;
    const int file;
    const std::string name;
    const platform::Stamp stamp;
  };
  FileBytes(std::shared_ptr<const Opened> file, size_t first, size_t size) : file_(std::move(file)), first_(first), size_(size) {}
  void check_range(size_t first, size_t bytes) const;

  std::shared_ptr<const Opened> file_;
  size_t first_, size_;
};

}  // namespace cutaway
