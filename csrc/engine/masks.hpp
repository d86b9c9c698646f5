// What each row of a noise block may see (spec-runtime 1.4), as ranges; no mask array exists anywhere.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "engine/config.hpp"

namespace dflash {

struct LayerMask {
    bool sliding = false;  // the layer sees only its window
    bool causal = false;   // row i of the block does not see rows j > i
    Window window = Window::PerRow;
    int64_t width = 0;     // W
};

// Row i of a block at `length`, q = rows.size() rows, where the context holds positions [oldest, length).
inline void block_visible(const LayerMask& mask, int64_t oldest, int64_t length, std::span<Visible> rows) {
    const auto q = static_cast<int64_t>(rows.size());
    for (int64_t i = 0; i < q; ++i) {
        Visible see{.ctx_begin = oldest,
                    .ctx_end = length,
                    .blk_begin = 0,
                    .blk_end = mask.causal ? i + 1 : q,
                    .block_pos = length};
        if (mask.sliding && mask.window == Window::Anchored) {
            see.ctx_begin = std::max(oldest, length - mask.width);
        } else if (mask.sliding) {  // positions less than W away from the row's own
            see.ctx_begin = std::clamp(length + i - mask.width + 1, oldest, length);
            see.blk_begin = std::max<int64_t>(0, i - mask.width + 1);
            see.blk_end = std::min(see.blk_end, i + mask.width);
        }
        rows[static_cast<size_t>(i)] = see;
    }
}

}  // namespace dflash
