// The ring's interval against the books of spec-runtime 4.2 kept slot by slot: same slots, same visible positions, and
// invariants I1, I2, I4 and I6 after every append, rewind and reset, at capacities around the block size.
#include "engine/ring.hpp"

#include <cstdio>
#include <vector>

using namespace dflash;

namespace {

int failures = 0;
void expect(bool ok, const char* what, int64_t cap, int64_t position) {
    if (ok) return;
    std::printf("FAIL %s (cap %ld, position %ld)\n", what, static_cast<long>(cap), static_cast<long>(position));
    ++failures;
}

// The books as the specification has them: which position every slot holds.
struct Slots {
    std::vector<int64_t> held;
    int64_t next = 0;
    explicit Slots(int64_t cap) : held(static_cast<size_t>(cap), -1) {}
    int64_t cap() const { return static_cast<int64_t>(held.size()); }
    void append(int64_t n) {
        for (; n > 0; --n, ++next) held[static_cast<size_t>(next % cap())] = next;
    }
    void rewind(int64_t length) {
        for (int64_t& p : held)
            if (p >= length) p = -1;
        next = next < length ? next : length;
    }
    bool holds(int64_t p) const { return p >= 0 && held[static_cast<size_t>(p % cap())] == p; }
};

void compare(const DraftRing& ring, const Slots& slots) {
    expect(ring.next == slots.next, "I4 next position", ring.cap, ring.next);
    expect(ring.next - ring.first <= ring.cap, "no more held than there are slots", ring.cap, ring.next);
    for (int64_t p = ring.next - 2 * ring.cap - 1; p < ring.next + ring.cap + 1; ++p)
        expect((p >= ring.first && p < ring.next) == slots.holds(p), "I2 held when its slot says so", ring.cap, p);
    for (int64_t p = ring.first; p < ring.next; ++p)
        expect(ring_slot(ring, p) == p % ring.cap, "I1 slot = position mod cap", ring.cap, p);
}

// A fixed stream of small numbers; the sequence of a 16-bit linear generator is enough here.
struct Stream {
    uint32_t state = 1;
    int64_t below(int64_t n) {
        state = state * 75 % 65537;
        return static_cast<int64_t>(state) % n;
    }
};

void random_walk(int64_t cap, int64_t block) {
    DraftRing ring{.cap = cap, .block = block};
    Slots slots(cap);
    Stream random;
    for (int step = 0; step < 2000; ++step) {
        const int64_t kind = random.below(10);
        if (kind < 7) {
            const int64_t n = 1 + random.below(block);
            const int64_t oldest = ring.first;
            ring_append(ring, n);
            slots.append(n);
            const int64_t left = ring.next > oldest + cap ? ring.next - cap : oldest;
            expect(ring.first == left, "I6 evicts exactly what falls out", cap, ring.first);
        } else if (kind < 9) {
            const int64_t length = ring.next > 0 ? random.below(ring.next + 1) : 0;
            const int64_t back = ring.next - length > 2 * cap ? ring.next - random.below(2 * cap) : length;
            ring_rewind(ring, back);
            slots.rewind(back);
        } else if (step % 50 == 0) {
            ring_reset(ring);
            slots = Slots(cap);
        }
        compare(ring, slots);
    }
}

}  // namespace

int main() {
    for (int64_t block : {2, 4, 8})
        for (int64_t cap = block; cap <= 3 * block + 1; ++cap) random_walk(cap, block);
    expect(kv_total(4096, 8) == 4128 && kv_total(2048, 8) == 2080, "rows of the arrays (spec-runtime 4.1)", 4096, 0);
    std::printf("%d failures\n", failures);
    return failures != 0;
}
