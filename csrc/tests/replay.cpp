// Makes the calls that tests/web/record.mjs recorded, `replay FILE...`, to a build of the WebAssembly runtime's
// functions for this machine, with sanitizers: whatever a page did with a damaged file is done here again. Outputs must
// be the recorded ones, within float32's rounding of exp and tanh, which differs between C libraries.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <map>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "../wasm/failure.hpp"

extern "C" {
void checksum(const uint8_t *, size_t, uint8_t *);
bool all_finite(const float *, size_t);
void create(size_t, size_t, double);
size_t linear(
    size_t, size_t, size_t, size_t, const void *, size_t, bool, bool, const float *, const float *, size_t, float, float
);
size_t convolution(
    size_t, const uint32_t *, const void *, size_t, bool, bool, const float *, const float *, size_t, float, float
);
size_t pool(size_t, size_t, const uint32_t *, bool, const float *, const float *, size_t, float, float);
size_t affine(size_t, size_t, size_t, size_t, const float *, const float *, size_t, float, float);
size_t tanh_of(size_t, size_t);
size_t sigmoid_of(size_t, size_t);
size_t softmax(size_t, size_t, size_t, size_t);
size_t add(size_t, size_t, size_t, float, float);
size_t concatenate(const uint32_t *, size_t, size_t);
size_t transpose(size_t, size_t, size_t);
void seal(size_t, size_t);
double memory_taken();
void run(const float *, size_t, float *);
void destroy();
}

void bayesbinn::wasm::fail(Failure, const char *text) { throw std::runtime_error(text); }

namespace {

struct Block {
    std::unique_ptr<uint8_t[]> bytes;  // exactly as long as asked for, so that a sanitizer sees where it ends
    size_t size;
};

struct Argument {
    double number;
    void *address;

    template <class T>
    operator T *() const {
        return static_cast<T *>(address);
    }
    operator size_t() const { return (size_t)number; }
    operator bool() const { return number != 0; }
    operator float() const { return (float)number; }
    operator double() const { return number; }
};

// Calls a function with as many arguments as it takes.
template <class Result, class... Types, size_t... Index>
double call(Result (*function)(Types...), const std::vector<Argument> &a, std::index_sequence<Index...>) {
    if (a.size() != sizeof...(Types)) throw std::logic_error("a call with another number of arguments");
    if constexpr (std::is_void_v<Result>) {
        function(static_cast<Types>(a[Index])...);
        return 0;
    } else {
        return (double)function(static_cast<Types>(a[Index])...);
    }
}

template <class Result, class... Types>
double call(Result (*function)(Types...), const std::vector<Argument> &arguments) {
    return call(function, arguments, std::index_sequence_for<Types...>());
}

double call(const std::string &name, const std::vector<Argument> &a) {
#define FUNCTION(known)                                                                                                \
    if (name == #known) return call(known, a);
    FUNCTION(checksum)
    FUNCTION(all_finite)
    FUNCTION(create)
    FUNCTION(linear)
    FUNCTION(convolution)
    FUNCTION(pool)
    FUNCTION(affine)
    FUNCTION(tanh_of)
    FUNCTION(sigmoid_of)
    FUNCTION(softmax)
    FUNCTION(add)
    FUNCTION(concatenate)
    FUNCTION(transpose)
    FUNCTION(seal)
    FUNCTION(memory_taken)
    FUNCTION(run)
#undef FUNCTION
    throw std::logic_error("an unknown function " + name);
}

class Replay {
   public:
    explicit Replay(const char *path) : file_(fopen(path, "rb")) {
        if (!file_) throw std::logic_error(std::string("cannot read ") + path);
    }
    ~Replay() { fclose(file_); }

    void run() {
        for (int letter = fgetc(file_); letter != EOF; letter = fgetc(file_)) step((char)letter);
        end();
    }

    size_t calls = 0, failures = 0, instances = 0, different = 0;

   private:
    void step(char letter) {
        switch (letter) {
        case 'E':
            end();
            instances++;
            break;
        case 'A': {
            const uint32_t id = number(), size = number();
            blocks_[id] = {std::make_unique<uint8_t[]>(size), size};
            break;
        }
        case 'R':
            blocks_.erase(number());
            break;
        case 'W': {
            Block &block = blocks_.at(number());
            take(block.bytes.get(), number());
            break;
        }
        case 'Y':
            compare();
            break;
        default:
            made(letter == 'F');
        }
    }

    void made(bool failed) {
        std::string name(number(), ' ');
        take(name.data(), name.size());
        std::vector<Argument> arguments(number());
        for (Argument &each : arguments) {
            if (number()) {
                Block &block = blocks_.at(number());
                each = {0, block.bytes.get() + number()};
            } else {
                each = {real(), nullptr};
            }
        }
        const double expected = failed ? 0 : real();
        calls++;
        if (over_) return;  // the limit was reached here, not there
        try {
            const double found = call(name, arguments);
            if (failed) failures++;
            const bool counts = name == "memory_taken";  // in words of another size
            if (!failed && !counts && found != expected) throw std::logic_error(name + " returned another number");
        } catch (const std::bad_alloc &) {
            over_ = true;
            failures++;
        } catch (const std::runtime_error &) {
            if (!failed) throw;
            failures++;
        }
    }

    void compare() {
        const Block &block = blocks_.at(number());
        std::vector<float> expected(number() / sizeof(float)), found(expected.size());
        take(expected.data(), expected.size() * sizeof(float));
        if (over_) return;
        memcpy(found.data(), block.bytes.get(), found.size() * sizeof(float));
        float largest = 0;
        for (const float each : expected)
            if (isfinite(each)) largest = fmaxf(largest, fabsf(each));
        for (size_t i = 0; i < expected.size(); i++) {
            const bool same =
                !memcmp(&expected[i], &found[i], sizeof(float)) || (isnan(expected[i]) && isnan(found[i]));
            if (same || fabsf(expected[i] - found[i]) <= 1e-5f * largest) continue;
            different++;
            fprintf(stderr, "%g instead of %g\n", (double)found[i], (double)expected[i]);
            return;
        }
    }

    void end() {
        destroy();
        blocks_.clear();
        over_ = false;
    }

    uint32_t number() {
        uint32_t found;
        take(&found, sizeof found);
        return found;
    }

    double real() {
        double found;
        take(&found, sizeof found);
        return found;
    }

    void take(void *to, size_t size) {
        if (size && fread(to, 1, size, file_) != size) throw std::logic_error("the record is cut off");
    }

    FILE *file_;
    std::map<uint32_t, Block> blocks_;
    bool over_ = false;
};

}  // namespace

int main(int count, char **paths) {
    size_t calls = 0, instances = 0, different = 0;
    for (int i = 1; i < count; i++) {
        Replay replay(paths[i]);
        replay.run();
        calls += replay.calls;
        instances += replay.instances;
        different += replay.different;
    }
    printf(
        "%zu calls of %zu instances, %zu different: %s\n", calls, instances, different, different ? "FAILED" : "clean"
    );
    return different ? 1 : 0;
}
