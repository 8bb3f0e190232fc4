// What kernels/tensor/device.h promises, for every device of this program. On CUDA the runtime is
// the fake or, in a program linked with the real one, a GPU's.
#include "kernels/tensor/device.h"

#include <functional>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bitshard {
namespace {

using absl::StatusCode;
using testing::HasSubstr;

class DeviceContract : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    auto opened = OpenDevice(GetParam(), 0);
    ASSERT_TRUE(opened.ok()) << opened.status();
    device_ = *std::move(opened);
    stream_ = NewStream();
  }

  std::unique_ptr<DeviceStream> NewStream() { return device_->NewStream().value(); }
  std::unique_ptr<DeviceEvent> NewEvent() { return device_->NewEvent().value(); }
  DeviceBuffer OnDevice(size_t bytes) { return device_->Alloc(bytes).value(); }
  DeviceBuffer OnHost(size_t bytes) { return device_->AllocHost(bytes).value(); }

  // Pinned memory with 0, 1, 2 ... 250, 0 ...
  DeviceBuffer Pattern(size_t bytes, size_t first = 0) {
    DeviceBuffer buffer = OnHost(bytes);
    for (size_t i = 0; i < bytes; ++i) buffer.data()[i] = static_cast<uint8_t>((first + i) % 251);
    return buffer;
  }
  static std::vector<uint8_t> Bytes(const DeviceBuffer& host) {
    return {host.data(), host.data() + host.bytes()};
  }
  // What is on the device, after all work of stream_.
  std::vector<uint8_t> Read(const DeviceBuffer& buffer) {
    const DeviceBuffer host = OnHost(buffer.bytes());
    EXPECT_TRUE(device_->Copy(host.data(), buffer.data(), buffer.bytes(), *stream_).ok());
    EXPECT_TRUE(device_->Sync(*stream_).ok());
    return Bytes(host);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<DeviceStream> stream_;
};

TEST_P(DeviceContract, FactsNameTheDevice) {
  const DeviceFacts& facts = device_->facts();
  EXPECT_EQ(facts.kind, GetParam());
  EXPECT_EQ(facts.index, 0);
  EXPECT_FALSE(facts.name.empty());
  EXPECT_GT(facts.total_bytes, 0u);
  EXPECT_EQ(facts.architecture.empty(), facts.compute_capability == 0);
}

TEST_P(DeviceContract, MemoryIsWithinTheTotal) {
  const auto memory = device_->Mem();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_GT(memory->free_bytes, 0u);
  EXPECT_LE(memory->free_bytes, memory->total_bytes);
}

TEST_P(DeviceContract, BuffersAreAlignedAndApart) {
  const DeviceBuffer a = OnDevice(1), b = OnDevice(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 256, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % 256, 0u);
  EXPECT_NE(a.data(), b.data());
  EXPECT_EQ(b.bytes(), 1000u);
}

TEST_P(DeviceContract, BytesTravelOverTheDevice) {
  const DeviceBuffer host = Pattern(1000);
  const DeviceBuffer a = OnDevice(1000), b = OnDevice(1000);
  ASSERT_TRUE(device_->Copy(a.data(), host.data(), 1000, *stream_).ok());
  ASSERT_TRUE(device_->Copy(b.data(), a.data(), 1000, *stream_).ok());
  EXPECT_EQ(Read(b), Bytes(host));
}

TEST_P(DeviceContract, PartsOfBuffersTravel) {
  const DeviceBuffer host = Pattern(1000);
  const DeviceBuffer device = OnDevice(1000);
  ASSERT_TRUE(device_->Fill(device.data(), 0xee, 1000, *stream_).ok());
  ASSERT_TRUE(device_->Copy(device.data() + 3, host.data() + 7, 5, *stream_).ok());
  const std::vector<uint8_t> bytes = Read(device);
  EXPECT_EQ(std::vector<uint8_t>(bytes.begin(), bytes.begin() + 10),
            (std::vector<uint8_t>{0xee, 0xee, 0xee, 7, 8, 9, 10, 11, 0xee, 0xee}));
}

TEST_P(DeviceContract, PageableMemoryTravels) {
  std::vector<uint8_t> in(777);
  std::iota(in.begin(), in.end(), uint8_t{1});
  std::vector<uint8_t> out(777);
  const DeviceBuffer device = OnDevice(777);
  ASSERT_TRUE(device_->Copy(device.data(), in.data(), 777, *stream_).ok());
  ASSERT_TRUE(device_->Copy(out.data(), device.data(), 777, *stream_).ok());
  ASSERT_TRUE(device_->Sync(*stream_).ok());
  EXPECT_EQ(in, out);
}

TEST_P(DeviceContract, FillsWithAByte) {
  const DeviceBuffer device = OnDevice(300);
  ASSERT_TRUE(device_->Fill(device.data(), 0x5a, 300, *stream_).ok());
  EXPECT_EQ(Read(device), std::vector<uint8_t>(300, 0x5a));
}

TEST_P(DeviceContract, NothingIsAllocatedCopiedOrFilled) {
  const auto device = device_->Alloc(0);
  const auto host = device_->AllocHost(0);
  ASSERT_TRUE(device.ok() && host.ok());
  EXPECT_EQ(device->data(), nullptr);
  EXPECT_EQ(host->bytes(), 0u);
  EXPECT_TRUE(device_->Copy(nullptr, nullptr, 0, *stream_).ok());
  EXPECT_TRUE(device_->Fill(nullptr, 0, 0, *stream_).ok());
}

TEST_P(DeviceContract, TooMuchSaysHowMuchWasAskedAndIsFree) {
  const uint64_t asked = device_->facts().total_bytes + 1;
  const absl::Status status = device_->Alloc(asked).status();
  EXPECT_EQ(status.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat(asked, " bytes asked")));
  EXPECT_THAT(status.message(), HasSubstr(" free"));
  EXPECT_THAT(status.message(), HasSubstr(GetParam()));
  // The device goes on.
  const DeviceBuffer small = OnDevice(64);
  ASSERT_TRUE(device_->Fill(small.data(), 1, 64, *stream_).ok());
  EXPECT_EQ(Read(small), std::vector<uint8_t>(64, 1));
}

TEST_P(DeviceContract, PinnedMemoryHasAnAddressOfTheDevice) {
  const DeviceBuffer host = Pattern(100);
  const auto mapped = device_->Mapped(host);
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  const DeviceBuffer device = OnDevice(100);
  ASSERT_TRUE(device_->Copy(device.data(), *mapped, 100, *stream_).ok());
  EXPECT_EQ(Read(device), Bytes(host));
}

TEST_P(DeviceContract, OtherMemoryIsNotMapped) {
  const DeviceBuffer device = OnDevice(100);
  EXPECT_EQ(device_->Mapped(device).status().code(), StatusCode::kInvalidArgument);
}

TEST_P(DeviceContract, AnEventOrdersTwoStreams) {
  const std::unique_ptr<DeviceStream> other = NewStream();
  const std::unique_ptr<DeviceEvent> written = NewEvent();
  const DeviceBuffer host = Pattern(500), out = OnHost(500);
  const DeviceBuffer device = OnDevice(500);
  ASSERT_TRUE(device_->Fill(device.data(), 0, 500, *other).ok());
  ASSERT_TRUE(device_->Copy(device.data(), host.data(), 500, *other).ok());
  ASSERT_TRUE(device_->Record(*written, *other).ok());
  ASSERT_TRUE(device_->Wait(*stream_, *written).ok());
  ASSERT_TRUE(device_->Copy(out.data(), device.data(), 500, *stream_).ok());
  ASSERT_TRUE(device_->Sync(*stream_).ok());
  EXPECT_EQ(Bytes(out), Bytes(host));
}

TEST_P(DeviceContract, AnEventThatWasNeverRecordedCountsAsPassed) {
  const std::unique_ptr<DeviceEvent> event = NewEvent();
  const auto done = device_->Done(*event);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_TRUE(*done);
  EXPECT_TRUE(device_->Wait(*stream_, *event).ok());
  EXPECT_TRUE(device_->Sync(*stream_).ok());
}

TEST_P(DeviceContract, WorkGetsDoneByAsking) {
  const std::unique_ptr<DeviceEvent> event = NewEvent();
  const DeviceBuffer host = Pattern(100), out = OnHost(100);
  const DeviceBuffer device = OnDevice(100);
  ASSERT_TRUE(device_->Copy(device.data(), host.data(), 100, *stream_).ok());
  ASSERT_TRUE(device_->Copy(out.data(), device.data(), 100, *stream_).ok());
  ASSERT_TRUE(device_->Record(*event, *stream_).ok());
  while (true) {
    const auto done = device_->Done(*event);
    ASSERT_TRUE(done.ok()) << done.status();
    if (*done) break;
    std::this_thread::yield();
  }
  EXPECT_EQ(Bytes(out), Bytes(host));
}

TEST_P(DeviceContract, TimedEventsTellHowLongTheWorkBetweenThemTook) {
  const auto before = device_->NewTimedEvent(), after = device_->NewTimedEvent();
  ASSERT_TRUE(before.ok() && after.ok()) << before.status() << after.status();
  const DeviceBuffer device = OnDevice(1 << 20);
  ASSERT_TRUE(device_->Record(**before, *stream_).ok());
  ASSERT_TRUE(device_->Fill(device.data(), 1, 1 << 20, *stream_).ok());
  ASSERT_TRUE(device_->Record(**after, *stream_).ok());
  ASSERT_TRUE(device_->Sync(*stream_).ok());
  const auto took = device_->ElapsedNs(**before, **after);
  const auto back = device_->ElapsedNs(**after, **before);
  ASSERT_TRUE(took.ok() && back.ok()) << took.status() << back.status();
  EXPECT_GT(*took, 0);
  EXPECT_EQ(*back, -*took);
}

TEST_P(DeviceContract, AnyThreadMayAskWhetherWorkIsDone) {
  const std::unique_ptr<DeviceEvent> event = NewEvent();
  const DeviceBuffer device = OnDevice(100);
  ASSERT_TRUE(device_->Fill(device.data(), 1, 100, *stream_).ok());
  ASSERT_TRUE(device_->Record(*event, *stream_).ok());
  ASSERT_TRUE(device_->Sync(*stream_).ok());
  absl::StatusOr<bool> done = false;
  absl::Status memory;
  std::thread([&] {
    done = device_->Done(*event);
    memory = device_->Mem().status();
  }).join();
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_TRUE(*done);
  EXPECT_TRUE(memory.ok()) << memory;
}

TEST_P(DeviceContract, AGraphRepeatsItsWork) {
  DeviceBuffer host = Pattern(100);
  const DeviceBuffer a = OnDevice(100), b = OnDevice(100);
  ASSERT_TRUE(device_->Fill(b.data(), 0xee, 100, *stream_).ok());
  ASSERT_TRUE(device_->BeginCapture(*stream_).ok());
  ASSERT_TRUE(device_->Copy(a.data(), host.data(), 100, *stream_).ok());
  ASSERT_TRUE(device_->Copy(b.data(), a.data(), 100, *stream_).ok());
  const auto graph = device_->EndCapture(*stream_);
  ASSERT_TRUE(graph.ok()) << graph.status();
  // Nothing has run yet.
  EXPECT_EQ(Read(b), std::vector<uint8_t>(100, 0xee));
  for (const uint8_t value : {uint8_t{3}, uint8_t{4}}) {
    std::fill_n(host.data(), 100, value);
    ASSERT_TRUE(device_->Launch(**graph, *stream_).ok());
    EXPECT_EQ(Read(b), std::vector<uint8_t>(100, value));
  }
}

TEST_P(DeviceContract, AGraphOutlivesItsStream) {
  const DeviceBuffer device = OnDevice(10);
  std::unique_ptr<DeviceStream> other = NewStream();
  ASSERT_TRUE(device_->BeginCapture(*other).ok());
  ASSERT_TRUE(device_->Fill(device.data(), 9, 10, *other).ok());
  const auto graph = device_->EndCapture(*other);
  ASSERT_TRUE(graph.ok()) << graph.status();
  other.reset();
  ASSERT_TRUE(device_->Launch(**graph, *stream_).ok());
  EXPECT_EQ(Read(device), std::vector<uint8_t>(10, 9));
}

TEST_P(DeviceContract, WhatACaptureForbidsSpoilsIt) {
  const std::unique_ptr<DeviceEvent> event = NewEvent();
  const std::unique_ptr<DeviceStream> other = NewStream();
  const DeviceBuffer buffer = OnDevice(10);
  ASSERT_TRUE(device_->BeginCapture(*stream_).ok());
  ASSERT_TRUE(device_->Fill(buffer.data(), 2, 10, *stream_).ok());
  const auto graph = device_->EndCapture(*stream_);
  ASSERT_TRUE(graph.ok()) << graph.status();

  const std::pair<const char*, std::function<absl::Status()>> forbidden[] = {
      {"Alloc", [&] { return device_->Alloc(10).status(); }},
      {"AllocHost", [&] { return device_->AllocHost(10).status(); }},
      {"Sync", [&] { return device_->Sync(*stream_); }},
      {"Sync of another stream", [&] { return device_->Sync(*other); }},
      {"Done", [&] { return device_->Done(*event).status(); }},
      {"Record", [&] { return device_->Record(*event, *stream_); }},
      {"Wait", [&] { return device_->Wait(*stream_, *event); }},
      {"Launch", [&] { return device_->Launch(**graph, *stream_); }},
      {"BeginCapture", [&] { return device_->BeginCapture(*stream_); }},
      {"BeginCapture of another stream", [&] { return device_->BeginCapture(*other); }},
  };
  for (const auto& [name, call] : forbidden) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(device_->BeginCapture(*stream_).ok());
    const absl::Status status = call();
    EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition) << status;
    const absl::Status end = device_->EndCapture(*stream_).status();
    EXPECT_EQ(end.code(), StatusCode::kFailedPrecondition) << end;
    // Nothing of it is left.
    ASSERT_TRUE(device_->Fill(buffer.data(), 1, 10, *stream_).ok());
    EXPECT_EQ(Read(buffer), std::vector<uint8_t>(10, 1));
  }
}

TEST_P(DeviceContract, OtherThreadsWorkDuringACapture) {
  const DeviceBuffer captured = OnDevice(10);
  ASSERT_TRUE(device_->BeginCapture(*stream_).ok());
  ASSERT_TRUE(device_->Fill(captured.data(), 6, 10, *stream_).ok());
  absl::Status status = absl::UnknownError("did not run");
  std::thread([&] {
    const std::unique_ptr<DeviceStream> other = NewStream();
    const DeviceBuffer buffer = OnDevice(10);
    status = device_->Fill(buffer.data(), 1, 10, *other);
    if (status.ok()) status = device_->Sync(*other);
  }).join();
  EXPECT_TRUE(status.ok()) << status;
  const auto graph = device_->EndCapture(*stream_);
  ASSERT_TRUE(graph.ok()) << graph.status();
  ASSERT_TRUE(device_->Launch(**graph, *stream_).ok());
  EXPECT_EQ(Read(captured), std::vector<uint8_t>(10, 6));
}

TEST_P(DeviceContract, EndCaptureWantsABegin) {
  EXPECT_EQ(device_->EndCapture(*stream_).status().code(), StatusCode::kFailedPrecondition);
}

TEST_P(DeviceContract, AStreamMayGoInTheMiddleOfItsCapture) {
  const DeviceBuffer buffer = OnDevice(10);
  std::unique_ptr<DeviceStream> other = NewStream();
  ASSERT_TRUE(device_->BeginCapture(*other).ok());
  ASSERT_TRUE(device_->Fill(buffer.data(), 6, 10, *other).ok());
  other.reset();
  ASSERT_TRUE(device_->Fill(buffer.data(), 1, 10, *stream_).ok());
  EXPECT_EQ(Read(buffer), std::vector<uint8_t>(10, 1));
}

TEST_P(DeviceContract, IndicesBeyondTheLastAreRefused) {
  const absl::Status status = OpenDevice(GetParam(), 4096).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat(GetParam(), ":4096")));
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceContract, testing::ValuesIn(DeviceKinds()),
                         [](const auto& kind) { return kind.param; });

TEST(OpenDevice, UnknownKindsListTheKnown) {
  const absl::Status status = OpenDevice("tpu", 0).status();
  EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(), HasSubstr("\"tpu\""));
  EXPECT_THAT(status.message(), HasSubstr("cpu"));
}

TEST(DeviceLost, IsToldFromOtherErrors) {
  EXPECT_TRUE(IsDeviceLost(DeviceLostError("gone")));
  EXPECT_EQ(DeviceLostError("gone").code(), StatusCode::kInternal);
  EXPECT_FALSE(IsDeviceLost(absl::InternalError("gone")));
  EXPECT_FALSE(IsDeviceLost(absl::OkStatus()));
}

}  // namespace
}  // namespace bitshard
