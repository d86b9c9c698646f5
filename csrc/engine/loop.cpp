#include "engine/loop.hpp"

#include <algorithm>
#include <chrono>

#include "engine/accept.hpp"

namespace dflash {
namespace {

using Clock = std::chrono::steady_clock;

// Adds the time of its scope to a sum.
class Timer {
   public:
    explicit Timer(double& sum) : sum_(sum) {}
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;
    ~Timer() { sum_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

   private:
    double& sum_;
    Clock::time_point start_ = Clock::now();
};

// The tokens still to come: the request's, or what the context has room for. The last token emitted needs a position
// too, so that a caller can go on from it.
int64_t token_budget(const Engine& e, const Request& r) {
    const auto prompt = static_cast<int64_t>(r.prompt.size());
    if (prompt == 0)
        throw Fault{.kind = FaultKind::Usage, .what = "the prompt is empty", .expected = "at least one token"};
    if (prompt >= e.target.max_context)
        throw Fault{.kind = FaultKind::Usage,
                    .what = "the prompt leaves no room in the context",
                    .found = std::to_string(prompt) + " tokens",
                    .expected = "fewer than " + std::to_string(e.target.max_context),
                    .fix = "raise the maximum context, or shorten the prompt"};
    return std::min(r.max_new, e.target.max_context - prompt);
}

struct Loop {
    Engine& e;
    const Request& request;
    Generation& out;
    int64_t budget;
    bool drafting;
    std::vector<int32_t> rows;     // [q] anchor and drafted tokens
    std::vector<Choice> choices;   // [q] the target's choice after each row
    std::vector<int32_t> chosen;   // [q] its tokens

    int64_t remaining() const { return budget - static_cast<int64_t>(out.tokens.size()); }
};

// Emits one token; true when it ends the generation.
bool emit(Loop& loop, const Choice& c) {
    loop.out.tokens.push_back(c.token);
    loop.out.margins.push_back(c.margin);
    if (is_eos(loop.request.eos, c.token)) {
        loop.out.stop = Stop::Eos;
        return true;
    }
    if (loop.remaining() > 0) return false;
    loop.out.stop = loop.budget < loop.request.max_new ? Stop::Context : Stop::Length;
    return true;
}

// Drafts m tokens behind the anchor, which is rows[0]; 0 when there is nothing to draft for or the draft is not finite.
int64_t draft_round(Loop& loop) {
    if (!loop.drafting) return 0;
    const int64_t most = loop.e.draft->config.block_size - 1;
    const int64_t m = std::min({most, loop.request.n_max, loop.remaining() - 1});
    if (m <= 0) return 0;
    const Timer timer(loop.out.draft_s);
    if (propose(loop.e, loop.rows[0], m, loop.rows.data() + 1)) return m;
    ++loop.out.bad_drafts;
    return 0;
}

// One step: draft, verify, emit what stands and the target's own next token, commit. True when the generation ends.
bool step(Loop& loop) {
    if (loop.e.poll) loop.e.poll();
    loop.rows[0] = loop.out.tokens.back();
    const int64_t m = draft_round(loop);
    {
        const Timer timer(loop.out.verify_s);
        verify(loop.e, {loop.rows.data(), static_cast<size_t>(m + 1)}, loop.drafting);
        choose(loop.e, {loop.choices.data(), static_cast<size_t>(m + 1)});
    }
    for (size_t i = 0; i <= static_cast<size_t>(m); ++i) loop.chosen[i] = loop.choices[i].token;
    const int64_t a = accepted_run({loop.rows.data() + 1, static_cast<size_t>(m)}, loop.chosen, loop.request.eos);
    ++loop.out.steps;
    if (m > 0) loop.out.rounds.push_back({static_cast<int32_t>(m), static_cast<int32_t>(a)});
    for (int64_t i = 0; i <= a; ++i)  // chosen[i] == rows[i + 1] for the accepted ones; the last is the bonus
        if (emit(loop, loop.choices[static_cast<size_t>(i)])) return true;
    const Timer timer(loop.out.draft_s);
    commit(loop.e, a + 1, loop.drafting);
    return false;
}

void run(Engine& e, const Request& request, int64_t budget, Generation& out) {
    const auto rows = static_cast<size_t>(e.draft ? e.draft->config.block_size : 1);
    Loop loop{.e = e,
              .request = request,
              .out = out,
              .budget = budget,
              .drafting = e.draft && request.n_max > 0,
              .rows = std::vector<int32_t>(rows),
              .choices = std::vector<Choice>(rows),
              .chosen = std::vector<int32_t>(rows)};
    Choice first;
    {
        const Timer timer(out.prefill_s);
        extend(e, request.prompt, loop.drafting);
        choose(e, {&first, 1});
    }
    if (emit(loop, first)) return;
    while (!step(loop)) {
    }
}

}  // namespace

Generation generate(Engine& e, const Request& request) {
    const int64_t budget = token_budget(e, request);
    reset(e);
    Generation out;
    if (budget <= 0) return out;
    out.tokens.reserve(static_cast<size_t>(budget));
    out.margins.reserve(static_cast<size_t>(budget));
    out.rounds.reserve(static_cast<size_t>(budget));
    {
        const Timer timer(out.total_s);
        run(e, request, budget, out);
    }
    return out;
}

}  // namespace dflash
