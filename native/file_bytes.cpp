#include "file_bytes.h"

#include <string.h>

namespace cutaway {

FileBytes::Opened::Opened(int from, std::string text)
    : file(platform::duplicate(from)), name(std::move(text)), stamp(platform::stamp(file)) {}

FileBytes::FileBytes(int file, std::string name) : file_(std::make_shared<Opened>(file, std::move(name))), first_(0) {
  if (file_->stamp.size < 0) throw FileError(file_->name, ": the file cannot be read; is too much open?");
  size_ = (size_t)file_->stamp.size;
}

void FileBytes::check_range(size_t first, size_t bytes) const {
  if (first > size_ || bytes > size_ - first) throw std::out_of_range("bytes of a file");
}

FileBytes FileBytes::part(size_t first, size_t end) const {
  if (end < first) throw std::out_of_range("bytes of a file");
  check_range(first, end - first);
  return {file_, first_ + first, end - first};
}

int FileBytes::try_read(size_t first, uint8_t* out, size_t bytes) const {
  check_range(first, bytes);
  return platform::read(file_->file, first_ + first, out, bytes);
}

void FileBytes::check(int wrong) const {
  if (wrong > 0) throw FileError(file_->name, std::string(": the file cannot be read: ") + strerror(wrong));
  if (wrong < 0 || platform::stamp(file_->file) != file_->stamp)
    throw FileError(file_->name, ": the file changed or was cut while it was read; copy it again");
}

void FileBytes::expect(size_t first, size_t bytes) const {
  check_range(first, bytes);
  platform::expect_bytes(file_->file, first_ + first, first_ + first + bytes);
}

}  // namespace cutaway
