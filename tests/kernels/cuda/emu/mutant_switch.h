// What decides in a source with many mutants (mutants.py) which one the program is: the environment
// of the process that mutate.py starts.
#pragma once

namespace bitshard::mutants {

// BITSHARD_MUTANT: a number, or "record". Constants to the kernels, so that the check build's hooks
// do not hear of their use. 0: none.
extern const int chosen;
extern const bool records;

// The program came by the mutant. False.
bool Record(int number);

}  // namespace bitshard::mutants

#define BITSHARD_MUTANT(number)                                       \
  (::bitshard::mutants::records ? ::bitshard::mutants::Record(number) \
                                : ::bitshard::mutants::chosen == (number))
