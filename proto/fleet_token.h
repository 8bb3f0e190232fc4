// The shared secret of a group in the metadata of Fleet.Connect: who does not bring it is turned
// away before a message of his is read.
#pragma once

namespace bitshard {

inline constexpr char kFleetTokenMetadata[] = "bitshard-fleet-token-bin";  // any bytes

}  // namespace bitshard
