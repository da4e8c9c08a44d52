/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that is Gloo's own: does the steps of a script by Debian's libgloo, and tells what came
 * out of each. `peer RANK SIZE DIR PREFIX SCRIPT OUT`; DIR is that of Gloo's FileStore. It holds
 * its connections until its standard input ends, as one that closes may take from others what it
 * has sent them. 3: an operation failed, as is said in OUT.
 *
 * Gloo's calls block: what is begun for later runs in a thread, as torch does it. Gloo of 2022 has
 * no gatherv; it is made here of the messages that its gather is made of.
 */
#include "script.h"

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/gather.h>
#include <gloo/math.h>
#include <gloo/reduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/scatter.h>
#include <gloo/transport/tcp/device.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unistd.h>
#include <vector>

namespace
{

using Context = std::shared_ptr<gloo::Context>;
using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;
using Func = void (*)(void *, const void *, const void *, size_t);
using Clock = std::chrono::steady_clock;

template <typename T> Func func_of(const std::string &op)
{
    static const std::map<std::string, Func> funcs = {
        {"sum", &gloo::sum<T>},
        {"product", &gloo::product<T>},
        {"min", &gloo::min<T>},
        {"max", &gloo::max<T>},
    };
    return funcs.at(op);
}

Func func_of(const script_step &step)
{
    using Of = Func (*)(const std::string &);
    static const std::map<std::string, Of> types = {
        {"u8", &func_of<uint8_t>},   {"i8", &func_of<int8_t>},         {"u16", &func_of<uint16_t>},
        {"i16", &func_of<int16_t>},  {"u32", &func_of<uint32_t>},      {"i32", &func_of<int32_t>},
        {"u64", &func_of<uint64_t>}, {"i64", &func_of<int64_t>},       {"f32", &func_of<float>},
        {"f64", &func_of<double>},   {"f16", &func_of<gloo::float16>},
    };
    const std::string dtype(step.dtype, std::strcspn(step.dtype, "!"));
    return types.at(dtype)(step.op);
}

/* Gloo looks at the size of a type alone, unless it reduces. */
template <typename F> void by_size(size_t bytes, F call)
{
    switch (bytes) {
    case 1:
        return call(uint8_t());
    case 2:
        return call(uint16_t());
    case 4:
        return call(uint32_t());
    default:
        return call(uint64_t());
    }
}

/* A step in flight: its buffers, and what is waited for. */
struct Work {
    script_step step;
    uint32_t tag;
    bool in_place;
    std::vector<char> in, out;
    size_t inputs, outputs;
    Buffer message;
    std::future<void> thread;

    Work(const script_step &s, uint32_t t, int rank, int size)
        : step(s), tag(t), in_place(s.line % 2 == 1), inputs(script_inputs(&s, rank, size)),
          outputs(script_outputs(&s, rank, size))
    {
        const size_t bytes = std::max<size_t>(1, script_element(&s));
        in.resize(std::max<size_t>(1, inputs * bytes));
        /* Gloo's reduce works in the output of all ranks. */
        const size_t room = script_is(&s, "reduce") ? s.count : outputs;
        out.resize(std::max<size_t>(1, room * bytes));
        script_fill(&s, rank, in.data(), inputs);
        if (script_is(&s, "allreduce") && in_place)
            std::memcpy(out.data(), in.data(), inputs * bytes);
    }
};

template <typename T> std::vector<T> rows_from(const Work &work, int size)
{
    std::vector<T> rows;
    for (int i = 0; i < size; i++)
        rows.push_back(static_cast<T>(script_rows(work.step.count, i, 0)));
    return rows;
}

void gatherv(const Context &context, Work &work)
{
    const auto slot = gloo::Slot::build(gloo::kGatherSlotPrefix, work.tag);
    const size_t bytes = script_element(&work.step);
    std::vector<Buffer> buffers;
    if (context->rank != work.step.root) {
        buffers.push_back(context->createUnboundBuffer(work.in.data(), work.inputs * bytes));
        buffers[0]->send(work.step.root, slot);
        buffers[0]->waitSend();
        return;
    }
    char *to = work.out.data();
    for (int i = 0; i < context->size; i++) {
        const size_t n = script_rows(work.step.count, i, 0) * bytes;
        if (i == context->rank) {
            std::memcpy(to, work.in.data(), n);
        } else {
            buffers.push_back(context->createUnboundBuffer(to, n));
            buffers.back()->recv(i, slot);
        }
        to += n;
    }
    for (auto &buffer : buffers)
        buffer->waitRecv();
}

template <typename Options> void reduce_options(Options &options, Work &work)
{
    by_size(script_element(&work.step), [&](auto zero) {
        using T = decltype(zero);
        if (!script_is(&work.step, "allreduce") || !work.in_place)
            options.setInput(reinterpret_cast<T *>(work.in.data()), work.step.count);
        options.setOutput(reinterpret_cast<T *>(work.out.data()), work.step.count);
    });
    options.setReduceFunction(func_of(work.step));
    options.setTag(work.tag);
}

template <typename Options> void both(Options &options, Work &work)
{
    by_size(script_element(&work.step), [&](auto zero) {
        using T = decltype(zero);
        options.setInput(reinterpret_cast<T *>(work.in.data()), work.inputs);
        options.setOutput(reinterpret_cast<T *>(work.out.data()), work.outputs);
    });
    options.setTag(work.tag);
}

void reduce_collective(const Context &context, Work &work)
{
    if (script_is(&work.step, "allreduce")) {
        gloo::AllreduceOptions options(context);
        reduce_options(options, work);
        gloo::allreduce(options);
    } else {
        gloo::ReduceOptions options(context);
        reduce_options(options, work);
        options.setRoot(work.step.root);
        gloo::reduce(options);
    }
}

void broadcast(const Context &context, Work &work)
{
    gloo::BroadcastOptions options(context);
    by_size(script_element(&work.step), [&](auto zero) {
        using T = decltype(zero);
        if (context->rank == work.step.root)
            options.setInput(reinterpret_cast<T *>(work.in.data()), work.step.count);
        options.setOutput(reinterpret_cast<T *>(work.out.data()), work.step.count);
    });
    options.setRoot(work.step.root);
    options.setTag(work.tag);
    gloo::broadcast(options);
}

void scatter(const Context &context, Work &work)
{
    gloo::ScatterOptions options(context);
    by_size(script_element(&work.step), [&](auto zero) {
        using T = decltype(zero);
        std::vector<T *> chunks;
        for (int i = 0; context->rank == work.step.root && i < context->size; i++)
            chunks.push_back(reinterpret_cast<T *>(work.in.data()) + i * work.step.count);
        if (!chunks.empty())
            options.setInputs(chunks, work.step.count);
        options.setOutput(reinterpret_cast<T *>(work.out.data()), work.step.count);
    });
    options.setRoot(work.step.root);
    options.setTag(work.tag);
    gloo::scatter(options);
}

void gather(const Context &context, Work &work)
{
    gloo::GatherOptions options(context);
    by_size(script_element(&work.step), [&](auto zero) {
        using T = decltype(zero);
        options.setInput(reinterpret_cast<T *>(work.in.data()), work.inputs);
        if (context->rank == work.step.root)
            options.setOutput(reinterpret_cast<T *>(work.out.data()), work.outputs);
    });
    options.setRoot(work.step.root);
    options.setTag(work.tag);
    gloo::gather(options);
}

void allgatherv(const Context &context, Work &work)
{
    gloo::AllgathervOptions options(context);
    by_size(script_element(&work.step), [&](auto zero) {
        using T = decltype(zero);
        options.setInput(reinterpret_cast<T *>(work.in.data()), work.inputs);
        options.setOutput(reinterpret_cast<T *>(work.out.data()),
                          rows_from<size_t>(work, context->size));
    });
    options.setTag(work.tag);
    gloo::allgatherv(options);
}

void alltoallv(const Context &context, Work &work)
{
    std::vector<int64_t> to, from;
    for (int i = 0; i < context->size; i++) {
        to.push_back(static_cast<int64_t>(script_rows(work.step.count, context->rank, i)));
        from.push_back(static_cast<int64_t>(script_rows(work.step.count, i, context->rank)));
    }
    gloo::AlltoallvOptions options(context);
    by_size(script_element(&work.step), [&](auto zero) {
        using T = decltype(zero);
        options.setInput(reinterpret_cast<T *>(work.in.data()), to);
        options.setOutput(reinterpret_cast<T *>(work.out.data()), from);
    });
    options.setTag(work.tag);
    gloo::alltoallv(options);
}

void allgather(const Context &context, Work &work)
{
    gloo::AllgatherOptions options(context);
    both(options, work);
    gloo::allgather(options);
}

void alltoall(const Context &context, Work &work)
{
    gloo::AlltoallOptions options(context);
    both(options, work);
    gloo::alltoall(options);
}

void barrier(const Context &context, Work &work)
{
    gloo::BarrierOptions options(context);
    options.setTag(work.tag);
    gloo::barrier(options);
}

void collective(const Context &context, Work &work)
{
    using Call = void (*)(const Context &, Work &);
    static const std::map<std::string, Call> calls = {
        {"barrier", &barrier},
        {"broadcast", &broadcast},
        {"reduce", &reduce_collective},
        {"allreduce", &reduce_collective},
        {"allgather", &allgather},
        {"allgatherv", &allgatherv},
        {"gather", &gather},
        {"gatherv", &gatherv},
        {"scatter", &scatter},
        {"alltoall", &alltoall},
        {"alltoallv", &alltoallv},
    };
    calls.at(work.step.verb)(context, work);
}

class Rank
{
  public:
    Rank(Context context, FILE *out) : context_(std::move(context)), out_(out) {}

    void run(FILE *script)
    {
        script_step step;
        int line = 0;
        while (script_next(script, &line, &step))
            if (step.times > 0)
                time(step);
            else if (script_is(&step, "wait"))
                wait_all();
            else if (script_is(&step, "die"))
                die(step);
            else if (concerns(step))
                begin(step);
        wait_all();
    }

  private:
    Context context_;
    FILE *out_;
    uint32_t tag_ = 0;
    std::list<Work> works_;

    bool concerns(const script_step &step) const
    {
        const bool sends = script_is(&step, "send");
        return script_is_collective(&step) || context_->rank == (sends ? step.root : step.to);
    }

    void die(const script_step &step) const
    {
        if (step.root == context_->rank)
            raise(SIGKILL);
    }

    uint32_t next_tag(const script_step &step)
    {
        return script_is_collective(&step) ? tag_++ : 0;
    }

    void begin(const script_step &step)
    {
        works_.emplace_back(step, next_tag(step), context_->rank, context_->size);
        Work &work = works_.back();
        if (!script_is_collective(&step))
            begin_message(work);
        else if (step.later)
            work.thread = std::async(std::launch::async, collective, context_, std::ref(work));
        else
            collective(context_, work);
        if (!step.later) {
            finish(work);
            works_.pop_back();
        }
    }

    void begin_message(Work &work)
    {
        const bool sends = script_is(&work.step, "send");
        const size_t bytes = work.step.count * script_element(&work.step);
        char *data = sends ? work.in.data() : work.out.data();
        work.message = context_->createUnboundBuffer(data, bytes);
        if (sends)
            work.message->send(work.step.to, work.step.slot);
        else
            work.message->recv(work.step.root, work.step.slot);
    }

    void finish(Work &work)
    {
        if (work.thread.valid())
            work.thread.get();
        if (work.message && script_is(&work.step, "send"))
            work.message->waitSend();
        else if (work.message)
            work.message->waitRecv();
        const uint64_t hash =
            script_hash(work.out.data(), work.outputs * script_element(&work.step));
        fprintf(out_, "%d %016lx\n", work.step.line, static_cast<unsigned long>(hash));
    }

    void wait_all()
    {
        for (Work &work : works_)
            finish(work);
        works_.clear();
        fflush(out_);
    }

    /* Of ten rows of calls, a tenth of which come before. */
    void time(const script_step &step)
    {
        Work work(step, 0, context_->rank, context_->size);
        std::vector<double> rows;
        const long row = std::max(1L, step.times / 10);
        fprintf(out_, "%d begins\n", step.line);
        fflush(out_);
        for (long i = 0; i < 11; i++) {
            const auto start = Clock::now();
            for (long j = 0; j < row; j++) {
                work.tag = next_tag(step);
                collective(context_, work);
            }
            const std::chrono::duration<double, std::micro> took = Clock::now() - start;
            if (i > 0)
                rows.push_back(took.count() / static_cast<double>(row));
        }
        std::sort(rows.begin(), rows.end());
        fprintf(out_, "%d time %.3f\n", step.line, (rows[4] + rows[5]) / 2);
    }
};

Context connect(int rank, int size, const char *folder, const char *prefix)
{
    gloo::transport::tcp::attr attr;
    attr.iface = "lo";
    auto device = gloo::transport::tcp::CreateDevice(attr);
    gloo::rendezvous::FileStore files(folder);
    gloo::rendezvous::PrefixStore store(prefix, files);
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    const char *limit = getenv("PEER_TIMEOUT_S");
    context->setTimeout(std::chrono::seconds(limit ? atoi(limit) : 30));
    if (prefix[0] != '\0')
        context->connectFullMesh(store, device);
    else
        context->connectFullMesh(files, device);
    return context;
}

} // namespace

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: peer RANK SIZE DIR PREFIX SCRIPT OUT\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN); /* Gloo's writes to a peer that is gone would end this one */
    FILE *script = fopen(argv[5], "r");
    FILE *out = fopen(argv[6], "w");
    if (!script || !out) {
        perror("peer");
        return 2;
    }
    std::unique_ptr<Rank> rank; /* not destroyed: operations that failed may still run in it */
    try {
        rank.reset(new Rank(connect(atoi(argv[1]), atoi(argv[2]), argv[3], argv[4]), out));
        rank->run(script);
    } catch (const std::exception &error) {
        fprintf(out, "failed %s\n", error.what());
        fflush(out);
        _exit(3);
    }
    fprintf(out, "done\n");
    fclose(out);
    while (getchar() != EOF)
        ;
    _exit(0);
}
