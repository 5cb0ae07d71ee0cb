// AMX's tiles in software: a handler of the signal for unknown instructions, which decodes and
// does what Intel's "Software Developer's Manual", volume 2, says of them, and goes on after them.

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "emulate.h"

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64 };

// The memory of ldtilecfg and sttilecfg.
struct configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
};

struct tiles {
    struct configuration shape; // palette 0: not configured
    uint8_t row[TILES][ROWS][ROW_BYTES] __attribute__((aligned(64)));
};

typedef float sum_element __attribute__((may_alias));
typedef uint16_t operand_element __attribute__((may_alias));

static _Thread_local struct tiles tiles;

// An instruction of VEX map 0F38, decoded as far as these need it.
struct instruction {
    int opcode, prefix, wide, length; // prefix: 0 none, 1 66, 2 F3, 3 F2
    int mod, reg, rm, vvvv;
    uintptr_t address; // of its memory operand, of which the index is not a part
    uint64_t stride;   // its index, scaled
};

static _Noreturn void refuse(const char *why)
{
    fprintf(stderr, "AMX: %s\n", why);
    abort();
}

static uint64_t reg_value(const ucontext_t *c, int number)
{
    static const int at[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI,
                               REG_RDI, REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13,
                               REG_R14, REG_R15};
    return (uint64_t)c->uc_mcontext.gregs[at[number]];
}

static int32_t displacement(const uint8_t *p, int bytes)
{
    int32_t wide = 0;
    if (bytes == 1)
        return (int8_t)*p;
    memcpy(&wide, p, bytes);
    return wide;
}

// Fills in a memory operand; p is after the ModRM byte, x and b the prefix's bits for registers
// above 7. Returns where the instruction ends.
static const uint8_t *decode_memory(struct instruction *i, const ucontext_t *c, const uint8_t *p,
                                    int x, int b)
{
    int bytes = i->mod == 1 ? 1 : i->mod == 2 ? 4 : 0, base = i->rm, index = 4, scale = 0;
    if (i->rm == 4) {
        base = *p & 7;
        index = (*p >> 3 & 7) | x << 3;
        scale = *p++ >> 6;
    }
    int none = base == 5 && i->mod == 0; // a displacement instead of the base
    if (none)
        bytes = 4;
    const uint8_t *end = p + bytes;
    i->address = none ? 0 : reg_value(c, base | b << 3);
    if (none && i->rm == 5)
        i->address = (uintptr_t)end; // relative to the next instruction
    i->address += (intptr_t)displacement(p, bytes);
    i->stride = index == 4 ? 0 : reg_value(c, index) << scale;
    return end;
}

// Whether the instruction is of map 0F38.
static int decode(struct instruction *i, const ucontext_t *c)
{
    const uint8_t *start = (const uint8_t *)c->uc_mcontext.gregs[REG_RIP], *p = start + 5;
    if (start[0] != 0xc4 || (start[1] & 0x1f) != 2)
        return 0;
    int x = !(start[1] & 0x40), b = !(start[1] & 0x20);
    *i = (struct instruction){
        .opcode = start[3], .prefix = start[2] & 3, .wide = start[2] >> 7,
        .vvvv = ~start[2] >> 3 & 15,
        .mod = start[4] >> 6, .reg = start[4] >> 3 & 7, .rm = start[4] & 7,
    };
    if ((start[2] & 4) || !(start[1] & 0x80))
        return 0; // 256 bits, or a register above 7: none of these has that
    if (i->mod != 3)
        p = decode_memory(i, c, p, x, b);
    i->length = (int)(p - start);
    return 1;
}

static void configure(const struct configuration *from)
{
    struct configuration shape;
    memcpy(&shape, from, sizeof shape);
    memset(&tiles, 0, sizeof tiles);
    if (shape.palette == 0)
        return;
    if (shape.palette != 1)
        refuse("configuration of an unknown palette");
    if (shape.start_row)
        refuse("configuration that begins in the middle of a tile, which nothing here does");
    for (int i = 0; i < 14; i++)
        if (shape.reserved[i])
            refuse("configuration with a reserved byte that is not zero");
    for (int i = 0; i < 16; i++) {
        if (i >= TILES && (shape.bytes[i] || shape.rows[i]))
            refuse("configuration of more than 8 tiles");
        if (shape.bytes[i] > ROW_BYTES || shape.rows[i] > ROWS)
            refuse("configuration of a tile larger than 16 rows of 64 bytes");
        if (!shape.bytes[i] != !shape.rows[i])
            refuse("configuration of a tile without rows or without columns");
    }
    tiles.shape = shape;
}

static void need_tile(int t)
{
    if (tiles.shape.palette == 0)
        refuse("a tile before any configuration");
    if (!tiles.shape.rows[t])
        refuse("a tile that is not configured");
}

static void load_tile(int t, const struct instruction *i)
{
    need_tile(t);
    memset(tiles.row[t], 0, sizeof tiles.row[t]);
    for (int r = 0; r < tiles.shape.rows[t]; r++)
        memcpy(tiles.row[t][r], (const void *)(i->address + r * i->stride),
               tiles.shape.bytes[t]);
}

static void store_tile(int t, const struct instruction *i)
{
    need_tile(t);
    for (int r = 0; r < tiles.shape.rows[t]; r++)
        memcpy((void *)(i->address + r * i->stride), tiles.row[t][r], tiles.shape.bytes[t]);
}

static float widen(uint16_t x)
{
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

// sum += a b: within a row of a, the even products and the odd ones have a sum each. Subnormals
// are zeros.
__attribute__((target("avx2,fma"))) static void dot_tiles(int sum, int a, int b)
{
    const struct configuration *s = &tiles.shape;
    need_tile(sum);
    need_tile(a);
    need_tile(b);
    if (sum == a || sum == b || a == b)
        refuse("a product whose tiles are not three");
    if (s->bytes[sum] % 4 || s->bytes[a] % 4 || s->bytes[b] % 4)
        refuse("a product of rows that are not whole pairs");
    if (s->rows[sum] != s->rows[a] || s->bytes[sum] != s->bytes[b] ||
        s->bytes[a] / 4 != s->rows[b])
        refuse("a product of tiles that do not fit each other");
    enum { FLUSH = 0x8040, WIDTH = ROW_BYTES / 4 };
    unsigned control = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(control | FLUSH);
    for (int m = 0; m < s->rows[sum]; m++) {
        float even[WIDTH] = {0}, odd[WIDTH] = {0};
        sum_element *to = (sum_element *)tiles.row[sum][m];
        const operand_element *x = (const operand_element *)tiles.row[a][m];
        for (int k = 0; k < s->bytes[a] / 4; k++) {
            const operand_element *y = (const operand_element *)tiles.row[b][k];
            float xe = widen(x[2 * k]), xo = widen(x[2 * k + 1]);
            for (int n = 0; n < WIDTH; n++) {
                even[n] = __builtin_fmaf(xe, widen(y[2 * n]), even[n]);
                odd[n] = __builtin_fmaf(xo, widen(y[2 * n + 1]), odd[n]);
            }
        }
        for (int n = 0; n < s->bytes[sum] / 4; n++)
            to[n] += even[n] + odd[n];
    }
    __builtin_ia32_ldmxcsr(control);
}

// Does the instruction; 0 if it is none of AMX's for bfloat16.
static int execute(const struct instruction *i)
{
    enum { CONFIGURE = 0x49, MOVE = 0x4b, DOT = 0x5c };
    enum { NONE, P66, F3, F2 };
    int memory = i->mod != 3, sib = memory && i->rm == 4;
    if (i->wide)
        return 0;
    if (i->opcode == DOT && i->prefix == F3 && !memory && i->vvvv < TILES) {
        dot_tiles(i->reg, i->rm, i->vvvv);
        return 1;
    }
    if (i->vvvv)
        return 0;
    if (i->opcode == CONFIGURE && memory && i->reg == 0 && i->prefix == NONE)
        configure((const void *)i->address);
    else if (i->opcode == CONFIGURE && memory && i->reg == 0 && i->prefix == P66)
        memcpy((void *)i->address, &tiles.shape, sizeof tiles.shape);
    else if (i->opcode == CONFIGURE && !memory && i->reg == 0 && i->rm == 0 && i->prefix == NONE)
        memset(&tiles, 0, sizeof tiles); // tilerelease
    else if (i->opcode == CONFIGURE && !memory && i->rm == 0 && i->prefix == F2) {
        need_tile(i->reg); // tilezero
        memset(tiles.row[i->reg], 0, sizeof tiles.row[i->reg]);
    } else if (i->opcode == MOVE && sib && (i->prefix == F2 || i->prefix == P66))
        load_tile(i->reg, i);
    else if (i->opcode == MOVE && sib && i->prefix == F3)
        store_tile(i->reg, i);
    else
        return 0;
    return 1;
}

static void unknown_instruction(int signal_number, siginfo_t *info, void *context)
{
    (void)info;
    ucontext_t *c = context;
    struct instruction i;
    if (decode(&i, c) && execute(&i))
        c->uc_mcontext.gregs[REG_RIP] += i.length;
    else
        signal(signal_number, SIG_DFL); // and comes here again, the last time
}

void emulate_amx(void)
{
    struct sigaction action = {.sa_sigaction = unknown_instruction, .sa_flags = SA_SIGINFO};
    sigaction(SIGILL, &action, 0);
}
