#include "tests/bench/load/load_run.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace bitshard {

double LoadNow() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void AnswerDigest::Add(std::string_view bytes) {
  for (const char byte : bytes) {
    value_ ^= static_cast<unsigned char>(byte);
    value_ *= 1099511628211u;
  }
}

void AnswerDigest::Add(uint32_t token) {
  const char bytes[4] = {static_cast<char>(token), static_cast<char>(token >> 8),
                         static_cast<char>(token >> 16), static_cast<char>(token >> 24)};
  Add(std::string_view(bytes, sizeof bytes));
}

LoadRun::LoadRun(Options options, LoadFace* face, std::vector<LoadCall> calls)
    : options_(std::move(options)),
      face_(face),
      calls_(std::move(calls)),
      records_(calls_.size()) {}

std::vector<LoadRecord> LoadRun::Run() {
  const double begin = LoadNow();
  {
    std::lock_guard<std::mutex> lock(mu_);
    std::mt19937_64 random(options_.seed);
    size_t scheduled = calls_.size();
    if (options_.rate <= 0 && options_.at_once > 0)
      scheduled = std::min<size_t>(scheduled, options_.at_once);
    double at = begin;
    for (size_t i = 0; i < scheduled; ++i) {
      if (options_.rate > 0) {
        const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;  // [0, 1)
        at -= std::log1p(-uniform) / options_.rate;
      }
      Schedule(at, i);
    }
    unscheduled_ = scheduled;
  }
  bool told = false;
  while (const std::optional<size_t> index = Next()) {
    LoadRecord& record = records_[*index];
    ++record.attempts;
    record.pushback_ms.reset();
    record.sent_s = LoadNow();
    face_->Start(calls_[*index], &record, [this, index = *index] { Ended(index); });
    bool all = false;
    {
      std::lock_guard<std::mutex> lock(mu_);
      all = begun_ == calls_.size();
    }
    if (all && !told) {
      told = true;
      if (options_.all_begun) options_.all_begun();
    }
  }
  return std::move(records_);
}

void LoadRun::Schedule(double at, size_t index) {
  if (records_[index].attempts == 0) records_[index].due_s = at;
  due_.emplace_back(at, index);
  std::push_heap(due_.begin(), due_.end(), std::greater<>());
}

std::optional<size_t> LoadRun::Next() {
  std::unique_lock<std::mutex> lock(mu_);
  while (true) {
    if (ended_ == calls_.size()) return std::nullopt;
    if (due_.empty()) {
      changed_.wait(lock);
      continue;
    }
    const double wait = due_.front().first - LoadNow();
    if (wait > 0) {
      changed_.wait_for(lock, std::chrono::duration<double>(wait));
      continue;
    }
    std::pop_heap(due_.begin(), due_.end(), std::greater<>());
    const size_t index = due_.back().second;
    due_.pop_back();
    if (records_[index].attempts == 0) ++begun_;
    return index;
  }
}

void LoadRun::Ended(size_t index) {
  std::lock_guard<std::mutex> lock(mu_);
  const LoadRecord& record = records_[index];
  if (options_.come_back && record.code == absl::StatusCode::kResourceExhausted &&
      record.pushback_ms.has_value()) {
    Schedule(LoadNow() + 1e-3 * static_cast<double>(*record.pushback_ms), index);
  } else {
    ++ended_;
    if (unscheduled_ < calls_.size()) Schedule(LoadNow(), unscheduled_++);
  }
  changed_.notify_one();
}

}  // namespace bitshard
