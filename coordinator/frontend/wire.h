// Bytes to messages and back, and how a call ends. Methods of ours take raw bytes because gRPC's
// own answer to broken protobuf or UTF-8 is UNIMPLEMENTED without a word; here it is
// INVALID_ARGUMENT.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/message.h"
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/server_callback.h>

#include "proto/status_map.h"

namespace bitshard {

// `name`: of the message, for the error.
absl::Status MalformedError(const std::string& name);

template <typename Message>
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, Message* message) {
  grpc::ByteBuffer shared = bytes;  // shares the bytes; the reader wants it mutable
  grpc::ProtoBufferReader reader(&shared);
  if (!reader.status().ok() || !message->ParseFromZeroCopyStream(&reader)) {
    return MalformedError(Message::descriptor()->full_name());
  }
  return absl::OkStatus();
}

grpc::ByteBuffer Serialize(const google::protobuf::MessageLite& message);

// The status as gRPC wants it; adds the trailers that belong to it. Call at most once a call, right
// before its Finish.
grpc::Status EndOfCall(grpc::CallbackServerContext* context, const absl::Status& status);

// Answers on `reactor` with `method(const Request&, Response*) -> absl::Status`, at once, on the
// calling thread.
template <typename Request, typename Response, typename Method>
void AnswerOn(grpc::ServerUnaryReactor* reactor, grpc::CallbackServerContext* context,
              const grpc::ByteBuffer* request, grpc::ByteBuffer* response, Method method) {
  Request parsed;
  Response answer;
  absl::Status status = ParseMessage(*request, &parsed);
  if (status.ok()) status = method(std::as_const(parsed), &answer);
  if (status.ok()) *response = Serialize(answer);
  reactor->Finish(EndOfCall(context, status));
}

template <typename Request, typename Response, typename Method>
grpc::ServerUnaryReactor* AnswerUnary(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request, grpc::ByteBuffer* response,
                                      Method method) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();  // makes a new one at each call
  AnswerOn<Request, Response>(reactor, context, request, response, method);
  return reactor;
}

// Who calls: scopes request ids. "" on a port without credentials.
std::string CallerOf(const grpc::CallbackServerContext& context);

}  // namespace bitshard
