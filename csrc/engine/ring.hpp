// The books of the draft's context cache (spec-runtime 4): which positions it holds. Position p lies in slot p mod cap,
// only committed positions are ever stored, and the noise block has rows of its own behind the slots.
//
// The positions held are always one interval [first, next): an append extends it at the end and evicts at the front,
// a rewind cuts the end. That is the whole state; nothing can be held twice, and no hole can arise.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>

namespace dflash {

struct DraftRing {
    int64_t cap = 0;    // slots of context
    int64_t block = 0;  // q, rows of the noise block
    int64_t first = 0;  // oldest position held
    int64_t next = 0;   // first position not yet appended
};

// Rows of each K and V array: slots, noise rows, one spare, rounded up to 32 (spec-runtime 4.1).
constexpr int64_t kv_total(int64_t cap, int64_t block) { return (cap + block + 1 + 31) / 32 * 32; }

inline int64_t ring_slot(const DraftRing& r, int64_t position) { return position % r.cap; }

inline void ring_reset(DraftRing& r) { r.first = r.next = 0; }

// Enters positions [next, next + n), whose rows have been written, and evicts what they overwrote: all that is older
// than the last cap positions.
inline void ring_append(DraftRing& r, int64_t n) {
    r.next += n;
    r.first = std::max(r.first, r.next - r.cap);
}

// Forgets positions from `length` on. The rows that they had evicted do not come back: after a wrap the window is
// shorter at its old end until new positions fill it, and visibility follows the interval, never stale rows.
inline void ring_rewind(DraftRing& r, int64_t length) {
    r.next = std::min(r.next, length);
    r.first = std::min(r.first, r.next);
    assert(r.next - r.first <= r.cap);
}

// Oldest position a block at ring.next may see, before any sliding window; all of [ring_window, next) is held.
inline int64_t ring_window(const DraftRing& r) { return r.first; }

}  // namespace dflash
