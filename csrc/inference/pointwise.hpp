// Everything except products: pooling, elementwise functions, sums, layout changes.
#pragma once

#include "step.hpp"

namespace bayesbinn::inference {

// One task for each example.
class ExampleStep : public Step {
   public:
    using Step::Step;

    size_t tasks(const Frame &frame) const override { return frame.batch; }

    void run(const Frame &frame, size_t example, std::byte *) const override { one(frame, frame.network, example); }

   protected:
    virtual void one(const Frame &frame, size_t network, size_t example) const = 0;
};

// The windows of a pooling layer along one axis, computed when needed, because a small file may ask for many.
struct PoolAxis {
    size_t count, inputs;
    size_t kernel;  // 0: `count` parts that cover the axis (adaptive pooling)
    size_t stride = 1, padding = 0, step = 1;
    bool counts_padding = false;

    // Inputs start, start + step, … below stop.
    struct Window {
        size_t start, stop;
        float size;  // what an average divides by: the product of both axes' sizes
    };
    Window window(size_t index) const;
};

class Pool : public ExampleStep {
   public:
    Pool(
        size_t input, size_t output, size_t channels, PoolAxis rows, PoolAxis columns, bool average, Finishing finishing
    )
        : ExampleStep({input}, output), channels_(channels), rows_(std::move(rows)), columns_(std::move(columns)),
          average_(average), finishing_(std::move(finishing)) {}

   protected:
    void one(const Frame &frame, size_t network, size_t example) const override;

   private:
    size_t channels_;
    PoolAxis rows_, columns_;
    bool average_;
    Finishing finishing_;
};

// y ← finish(x) for [outer][channels][inner].
class Affine : public ExampleStep {
   public:
    Affine(size_t input, size_t output, size_t outer, size_t channels, size_t inner, Finishing finishing)
        : ExampleStep({input}, output), outer_(outer), channels_(channels), inner_(inner),
          finishing_(std::move(finishing)) {}

   protected:
    void one(const Frame &frame, size_t network, size_t example) const override;

   private:
    size_t outer_, channels_, inner_;
    Finishing finishing_;
};

class Elementwise : public ExampleStep {
   public:
    Elementwise(size_t input, size_t output, size_t count, float (*function)(float))
        : ExampleStep({input}, output), count_(count), function_(function) {}

   protected:
    void one(const Frame &frame, size_t network, size_t example) const override;

   private:
    size_t count_;
    float (*function_)(float);
};

// Along the middle axis of [outer][count][inner].
class Softmax : public ExampleStep {
   public:
    Softmax(size_t input, size_t output, size_t outer, size_t count, size_t inner)
        : ExampleStep({input}, output), outer_(outer), count_(count), inner_(inner) {}

   protected:
    void one(const Frame &frame, size_t network, size_t example) const override;

   private:
    size_t outer_, count_, inner_;
};

class Add : public ExampleStep {
   public:
    Add(size_t first, size_t second, size_t output, size_t count, float low, float high)
        : ExampleStep({first, second}, output), count_(count) {
        limits_.low = low;
        limits_.high = high;
    }

   protected:
    void one(const Frame &frame, size_t network, size_t example) const override;

   private:
    size_t count_;
    Finishing limits_;
};

// Input i is [outer][lengths i]; they are joined in every part of the output.
class Concatenate : public ExampleStep {
   public:
    Concatenate(std::vector<size_t> inputs, size_t output, size_t outer, std::vector<size_t> lengths)
        : ExampleStep(std::move(inputs), output), outer_(outer), lengths_(std::move(lengths)) {}

   protected:
    void one(const Frame &frame, size_t network, size_t example) const override;

   private:
    size_t outer_;
    std::vector<size_t> lengths_;
};

// [rows][columns] → [columns][rows]: between channels first and channels last.
class Transpose : public ExampleStep {
   public:
    Transpose(size_t input, size_t output, size_t rows, size_t columns)
        : ExampleStep({input}, output), rows_(rows), columns_(columns) {}

   protected:
    void one(const Frame &frame, size_t network, size_t example) const override;

   private:
    size_t rows_, columns_;
};

}  // namespace bayesbinn::inference
