/* The class logits of a network's output z: z itself, or 0 and z for a single number. */
static void model_logits(float *logits, const float *z)
{
    const size_t first = MODEL_OUTPUTS - MODEL_RAW_OUTPUTS;
    logits[0] = 0.0f;
    for (size_t k = 0; k < MODEL_RAW_OUTPUTS; k++) {
        logits[first + k] = z[k] * model_logit_scale;
    }
}
