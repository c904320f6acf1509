/* An op of one's own for ONNX Runtime: my.domain::Double, which doubles the floats of a tensor.

   ONNX Runtime's C API is a table of functions whose places never change; the few that are needed are called by their
   places, so that no header is needed to compile this. */

#include <stddef.h>
#include <stdint.h>

typedef void *(*Function)();
typedef struct { const Function *(*get_api)(uint32_t version); const char *(*version)(void); } ApiBase;

enum {
    CREATE_DOMAIN = 26, ADD_TO_DOMAIN = 27, ADD_DOMAIN = 28,
    GET_DATA = 51, GET_RANK = 61, GET_DIMS = 62, GET_COUNT = 64, GET_SHAPE = 65,
    GET_INPUT = 90, GET_OUTPUT = 91, RELEASE_SHAPE = 99
};

typedef struct Op {
    uint32_t version;
    void *(*create)(const struct Op *, const Function *, const void *);
    const char *(*name)(const struct Op *);
    const char *(*provider)(const struct Op *);
    int (*input_type)(const struct Op *, size_t);
    size_t (*input_count)(const struct Op *);
    int (*output_type)(const struct Op *, size_t);
    size_t (*output_count)(const struct Op *);
    void (*compute)(void *, void *);
    void (*destroy)(void *);
    int (*input_kind)(const struct Op *, size_t);
    int (*output_kind)(const struct Op *, size_t);
} Op;

static const Function *api;

static void *create(const Op *op, const Function *given, const void *info) { return (void *)op; }
static void destroy(void *kernel) {}
static const char *name(const Op *op) { return "Double"; }
static const char *provider(const Op *op) { return NULL; }
static int is_float(const Op *op, size_t index) { return 1; }
static size_t one(const Op *op) { return 1; }
static int is_required(const Op *op, size_t index) { return 0; }

static void compute(void *kernel, void *context) {
    const void *input; void *output, *shape; float *from, *to; size_t rank, count; int64_t dims[16];
    api[GET_INPUT](context, (size_t)0, &input);
    api[GET_SHAPE](input, &shape);
    api[GET_RANK](shape, &rank);
    api[GET_DIMS](shape, dims, rank);
    api[GET_COUNT](shape, &count);
    api[RELEASE_SHAPE](shape);
    api[GET_OUTPUT](context, (size_t)0, dims, rank, &output);
    api[GET_DATA](input, &from);
    api[GET_DATA](output, &to);
    for (size_t i = 0; i < count; i++) to[i] = 2 * from[i];
}

static const Op op = {8, create, name, provider, is_float, one, is_float, one, compute, destroy, is_required, is_required};

void *RegisterCustomOps(void *options, const ApiBase *base) {
    void *domain, *failure;
    api = base->get_api(8);
    if ((failure = api[CREATE_DOMAIN]("my.domain", &domain))) return failure;
    if ((failure = api[ADD_TO_DOMAIN](domain, &op))) return failure;
    return api[ADD_DOMAIN](options, domain);
}
