// Times products of ggml's CPU backend as llama.cpp runs them: weights in the first buffer type
// that takes them (repacked or for AMX, where there is one), activations in f32, one graph of one
// product for each copy of the weights, and a thread pool that stays.
//
// Speaks the protocol of ../README.md on standard input and output.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"

namespace {

constexpr int64_t DISTINCT_ROWS = 251;
constexpr size_t CYCLE_BYTES = size_t(256) << 20;
constexpr int MAX_COPIES = 128;
constexpr int SAMPLES = 256;
constexpr size_t MAX_CALLS = 4096;

struct Random {
    uint64_t state;
    uint32_t bits() {
        state = state * 6364136223846793005ULL + 1442695040888963407ULL;
        return uint32_t(state >> 32);
    }
    float within(float size) { return (float(bits() >> 8) / 8388608.0f - 1.0f) * size; }
    int64_t below(int64_t limit) { return int64_t(bits()) % limit; }
};

struct Context {
    ggml_context * ptr = nullptr;
    explicit Context(size_t tensors) {
        size_t size = tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(8, false);
        ptr = ggml_init({size, nullptr, true});
    }
    ~Context() { ggml_free(ptr); }
    Context(const Context &) = delete;
};

struct Buffer {
    ggml_backend_buffer_t ptr = nullptr;
    explicit Buffer(ggml_backend_buffer_t buffer) : ptr(buffer) {}
    ~Buffer() { ggml_backend_buffer_free(ptr); }
    Buffer(const Buffer &) = delete;
};

// Weights, and copies of them as the backend wants them.
struct Weights {
    std::string format;
    ggml_type type = GGML_TYPE_COUNT;
    int64_t n = 0, k = 0, distinct = 0;
    std::vector<float> decoded;
    ggml_backend_buffer_type_t buft = nullptr;
    std::vector<std::unique_ptr<Context>> contexts;
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<ggml_tensor *> copies;
};

// A product with each of the copies.
struct Case {
    std::vector<std::unique_ptr<Context>> contexts;
    std::vector<std::unique_ptr<Buffer>> buffers;
    std::vector<ggml_cgraph *> graphs;
    ggml_tensor * out = nullptr;
    size_t turn = 0;
};

ggml_backend_buffer_type_t choose(ggml_backend_dev_t dev, ggml_type type, int64_t n, int64_t k) {
    auto reg = ggml_backend_dev_backend_reg(dev);
    auto extra = (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(
        reg, "ggml_backend_dev_get_extra_bufts");
    for (auto list = extra ? extra(dev) : nullptr; list && *list; ++list) {
        Context context(8);
        ggml_tensor * w = ggml_new_tensor_2d(context.ptr, type, k, n);
        ggml_tensor * x = ggml_new_tensor_2d(context.ptr, GGML_TYPE_F32, k, 512);
        ggml_tensor * op = ggml_mul_mat(context.ptr, w, x);
        Buffer empty(ggml_backend_buft_alloc_buffer(*list, 0));
        w->buffer = empty.ptr;
        if (ggml_backend_dev_supports_op(dev, op)) return *list;
    }
    return ggml_backend_cpu_buffer_type();
}

Buffer * place(ggml_tensor * tensor, ggml_backend_buffer_type_t type) {
    auto buffer = ggml_backend_buft_alloc_buffer(type, ggml_backend_buft_get_alloc_size(type, tensor));
    if (!buffer) return nullptr;
    ggml_backend_buffer_set_usage(buffer, GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    ggml_backend_tensor_alloc(buffer, tensor, ggml_backend_buffer_get_base(buffer));
    return new Buffer(buffer);
}

ggml_type type_of(const std::string & name) {
    for (int id = 0; id < GGML_TYPE_COUNT; ++id) {
        auto known = ggml_type_name(ggml_type(id));
        if (known && strcasecmp(known, name.c_str()) == 0) return ggml_type(id);
    }
    return GGML_TYPE_COUNT;
}

std::string make(Weights & made, ggml_backend_t backend, const std::string & format, int64_t n, int64_t k) {
    ggml_type type = type_of(format);
    if (type == GGML_TYPE_COUNT) return "no unknown format";
    if (n < 1 || k < 1 || k % ggml_blck_size(type) != 0) return "no size";
    auto traits = ggml_get_type_traits(type);
    if (type != GGML_TYPE_F32 && (!traits->to_float || !traits->from_float_ref)) return "no codec";
    made.format = format;
    made.type = type;
    made.n = n;
    made.k = k;
    // Rows repeat after a prime number of them.
    const int64_t distinct = made.distinct = std::min(n, DISTINCT_ROWS);
    const size_t row_bytes = ggml_row_size(type, k);
    Random random{uint64_t(n * 31 + k) ^ 0x9e3779b97f4a7c15ULL};
    std::vector<float> values(distinct * k);
    made.decoded.resize(distinct * k);
    for (auto & value : values) value = random.within(0.0625f);
    std::vector<uint8_t> rows(distinct * row_bytes);
    ggml_quantize_chunk(type, values.data(), rows.data(), 0, distinct, k, nullptr);
    if (type == GGML_TYPE_F32) {
        made.decoded = values;
    } else {
        for (int64_t row = 0; row < distinct; ++row)
            traits->to_float(&rows[row * row_bytes], &made.decoded[row * k], k);
    }
    std::vector<uint8_t> weights(n * row_bytes);
    for (int64_t row = 0; row < n; ++row)
        memcpy(&weights[row * row_bytes], &rows[row % distinct * row_bytes], row_bytes);
    made.buft = choose(ggml_backend_get_device(backend), type, n, k);
    size_t bytes = weights.size();
    size_t count = std::clamp<size_t>((CYCLE_BYTES + bytes - 1) / bytes, 1, MAX_COPIES);
    for (size_t at = 0; at < count; ++at) {
        made.contexts.push_back(std::make_unique<Context>(1));
        ggml_tensor * w = ggml_new_tensor_2d(made.contexts.back()->ptr, type, k, n);
        made.buffers.emplace_back(place(w, made.buft));
        if (!made.buffers.back()) return "no memory";
        ggml_backend_tensor_set(w, weights.data(), 0, weights.size());
        made.copies.push_back(w);
    }
    return "";
}

// A product of m rows, and how exact it is.
std::string open(Case & made, const Weights & weights, ggml_backend_t backend, int64_t m) {
    const int64_t n = weights.n, k = weights.k;
    if (m < 1) return "no size";
    Random random{uint64_t(m)};
    std::vector<float> x(m * k);
    for (auto & value : x) value = random.within(0.25f);
    auto cpu = ggml_backend_cpu_buffer_type();
    ggml_tensor * input = nullptr;
    for (auto w : weights.copies) {
        made.contexts.push_back(std::make_unique<Context>(8));
        auto ctx = made.contexts.back()->ptr;
        if (!input) {
            input = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, k, m);
            made.buffers.emplace_back(place(input, cpu));
            if (!made.buffers.back()) return "no memory";
            ggml_backend_tensor_set(input, x.data(), 0, x.size() * sizeof(float));
        }
        ggml_tensor * out = ggml_mul_mat(ctx, w, input);
        made.buffers.emplace_back(place(out, cpu));
        if (!made.buffers.back()) return "no memory";
        made.graphs.push_back(ggml_new_graph_custom(ctx, 8, false));
        ggml_build_forward_expand(made.graphs.back(), out);
        if (!made.out) made.out = out;
    }
    if (ggml_backend_graph_compute(backend, made.graphs[0]) != GGML_STATUS_SUCCESS)
        return "no result";
    auto out = (const float *)made.out->data;
    double errors = 0, squares = 0;
    for (int sample = 0; sample < SAMPLES; ++sample) {
        int64_t row = random.below(m), column = random.below(n);
        auto w = &weights.decoded[column % weights.distinct * k];
        double want = 0;
        for (int64_t at = 0; at < k; ++at) want += double(x[row * k + at]) * double(w[at]);
        double error = double(out[row * n + column]) - want;
        errors += error * error;
        squares += want * want;
    }
    std::ostringstream answer;
    answer << "ok " << std::sqrt(errors / squares) << " " << ggml_backend_buft_name(weights.buft);
    return answer.str();
}

std::string open(
    std::unique_ptr<Weights> & weights, std::unique_ptr<Case> & made, ggml_backend_t backend, std::istringstream & line) {
    std::string format;
    int64_t m = 0, n = 0, k = 0;
    line >> format >> m >> n >> k;
    if (!line) return "no size";
    made.reset();
    // The weights of the last case often serve the next.
    if (!weights || weights->format != format || weights->n != n || weights->k != k) {
        weights = std::make_unique<Weights>();
        auto why = make(*weights, backend, format, n, k);
        if (!why.empty()) {
            weights.reset();
            return why;
        }
    }
    made = std::make_unique<Case>();
    auto answer = open(*made, *weights, backend, m);
    if (answer.rfind("ok", 0) != 0) made.reset();
    return answer;
}

std::string run(Case & made, ggml_backend_t backend, std::istringstream & line) {
    using clock = std::chrono::steady_clock;
    double milliseconds = 0;
    line >> milliseconds;
    if (!line) return "no case";
    auto begin = clock::now();
    std::ostringstream answer;
    answer << "ns";
    for (size_t calls = 0; calls < MAX_CALLS; ++calls) {
        auto graph = made.graphs[made.turn++ % made.graphs.size()];
        auto start = clock::now();
        if (ggml_backend_graph_compute(backend, graph) != GGML_STATUS_SUCCESS) return "no result";
        auto end = clock::now();
        answer << ' ' << std::chrono::duration_cast<std::chrono::nanoseconds>(end - start).count();
        if (std::chrono::duration<double, std::milli>(end - begin).count() >= milliseconds) break;
    }
    return answer.str();
}

}  // namespace

int main(int argc, char ** argv) {
    int threads = argc > 1 ? std::atoi(argv[1]) : 1;
    if (threads < 1 || threads > GGML_MAX_N_THREADS) {
        std::fprintf(stderr, "usage: driver THREADS\n");
        return 2;
    }
    auto backend = ggml_backend_cpu_init();
    auto params = ggml_threadpool_params_default(threads);
    auto pool = ggml_threadpool_new(&params);
    ggml_backend_cpu_set_n_threads(backend, threads);
    ggml_backend_cpu_set_threadpool(backend, pool);
    // Of what the backend says, only its answers count.
    ggml_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    std::unique_ptr<Weights> weights;
    std::unique_ptr<Case> made;
    for (std::string text; std::getline(std::cin, text);) {
        std::istringstream line(text);
        std::string command, answer = "no such command";
        line >> command;
        if (command == "open") {
            ggml_threadpool_resume(pool);
            answer = open(weights, made, backend, line);
            ggml_threadpool_pause(pool);
        } else if (command == "run") {
            // Its threads look for work for a long time. While it is another's turn they must not.
            ggml_threadpool_resume(pool);
            answer = made ? run(*made, backend, line) : "no case";
            ggml_threadpool_pause(pool);
        } else if (command == "close") {
            made.reset();
            weights.reset();
            answer = "ok";
        }
        std::cout << answer << std::endl;
    }
    made.reset();
    weights.reset();
    ggml_backend_free(backend);
    ggml_threadpool_free(pool);
    return 0;
}
