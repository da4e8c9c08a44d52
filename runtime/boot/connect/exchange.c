/* SPDX-License-Identifier: Apache-2.0 */
/*
 * With G the generator, w the secret as a number, M and N two points of which nobody knows a
 * logarithm, and x and y random:
 *
 *     connector   X = x G + w M   --->
 *                                 <---   Y = y G + w N   acceptor
 *     x (Y - w N)  =  x y G  =  y (X - w M)
 *
 * A share shows nothing of w, since x G is any point. A peer that guesses w wrongly computes
 * another point; whether a guess was right it can only tell from the proof of a side that knows w,
 * so each connection tests one guess. w M and w N are computed once a key. The curve has cofactor
 * 1: a point on it is in the group.
 */
#include "boot/connect/exchange.h"

#include <openssl/bn.h>
#include <openssl/crypto.h>
#include <openssl/ec.h>
#include <openssl/obj_mac.h>
#include <stdbool.h>

#define MASK_BYTES 33 /* compressed */

/* RFC 9382, section 4: made from published seeds by hashing. M hides the connector's share. */
static const uint8_t mask_points[2][MASK_BYTES] = {
    {0x02, 0x88, 0x6e, 0x2f, 0x97, 0xac, 0xe4, 0x6e, 0x55, 0xba, 0x9d,
     0xd7, 0x24, 0x25, 0x79, 0xf2, 0x99, 0x3b, 0x64, 0xe1, 0x6e, 0xf3,
     0xdc, 0xab, 0x95, 0xaf, 0xd4, 0x97, 0x33, 0x3d, 0x8f, 0xa1, 0x2f},
    {0x03, 0xd8, 0xbb, 0xd6, 0xc6, 0x39, 0xc6, 0x29, 0x37, 0xb0, 0x4d,
     0x99, 0x7f, 0x38, 0xc3, 0x77, 0x07, 0x19, 0xc6, 0x29, 0xd7, 0x01,
     0x4d, 0x49, 0xa2, 0x4b, 0x4f, 0x98, 0xba, 0xa1, 0x29, 0x2b, 0x49}};

/* What libcrypto needs for a computation; all of it is wiped in the end. */
struct work {
    EC_GROUP *group;
    BN_CTX *context;
    BIGNUM *number;
    EC_POINT *a, *b;
};

static bool work_begin(struct work *work)
{
    *work = (struct work){.group = EC_GROUP_new_by_curve_name(NID_X9_62_prime256v1),
                          .context = BN_CTX_secure_new(),
                          .number = BN_secure_new()};
    if (!work->group || !work->context || !work->number)
        return false;
    work->a = EC_POINT_new(work->group);
    work->b = EC_POINT_new(work->group);
    return work->a && work->b;
}

static void work_end(struct work *work)
{
    EC_POINT_clear_free(work->a);
    EC_POINT_clear_free(work->b);
    BN_clear_free(work->number);
    BN_CTX_free(work->context);
    EC_GROUP_free(work->group);
}

static bool number_from_seed(struct work *work, const uint8_t seed[HORON_SEED_BYTES])
{
    return BN_bin2bn(seed, HORON_SEED_BYTES, work->number) &&
           BN_nnmod(work->number, work->number, EC_GROUP_get0_order(work->group), work->context);
}

static bool read_point(const struct work *work, EC_POINT *point, const uint8_t *bytes, size_t count)
{
    return EC_POINT_oct2point(work->group, point, bytes, count, work->context);
}

/* False also for the point at infinity, which has one byte. */
static bool write_point(const struct work *work, const EC_POINT *point,
                        uint8_t bytes[HORON_POINT_BYTES])
{
    return EC_POINT_point2oct(work->group, point, POINT_CONVERSION_UNCOMPRESSED, bytes,
                              HORON_POINT_BYTES, work->context) == HORON_POINT_BYTES;
}

horon_status_t horon_exchange_masks(const uint8_t seed[HORON_SEED_BYTES],
                                    struct horon_exchange_masks *masks_out)
{
    struct work work;
    bool ok = work_begin(&work) && number_from_seed(&work, seed);
    for (int side = 0; side < 2 && ok; side++)
        ok = read_point(&work, work.a, mask_points[side], MASK_BYTES) &&
             EC_POINT_mul(work.group, work.b, NULL, work.a, work.number, work.context) &&
             write_point(&work, work.b, masks_out->of[side]);
    work_end(&work);
    return ok ? HORON_OK : HORON_ERR_SYSTEM;
}

horon_status_t horon_exchange_begin(const struct horon_exchange_masks *masks, enum horon_side side,
                                    const uint8_t seed[HORON_SEED_BYTES],
                                    uint8_t scalar_out[HORON_SCALAR_BYTES],
                                    uint8_t share_out[HORON_POINT_BYTES])
{
    struct work work;
    const bool ok =
        work_begin(&work) && number_from_seed(&work, seed) &&
        BN_bn2binpad(work.number, scalar_out, HORON_SCALAR_BYTES) == HORON_SCALAR_BYTES &&
        EC_POINT_mul(work.group, work.a, work.number, NULL, NULL, work.context) &&
        read_point(&work, work.b, masks->of[side], HORON_POINT_BYTES) &&
        EC_POINT_add(work.group, work.a, work.a, work.b, work.context) &&
        write_point(&work, work.a, share_out);
    work_end(&work);
    return ok ? HORON_OK : HORON_ERR_SYSTEM;
}

horon_status_t horon_exchange_end(const struct horon_exchange_masks *masks, enum horon_side side,
                                  const uint8_t scalar[HORON_SCALAR_BYTES],
                                  const uint8_t theirs[HORON_POINT_BYTES],
                                  uint8_t shared_out[HORON_POINT_BYTES])
{
    struct work work;
    horon_status_t status = HORON_ERR_SYSTEM;
    if (!work_begin(&work) || !BN_bin2bn(scalar, HORON_SCALAR_BYTES, work.number) ||
        !read_point(&work, work.b, masks->of[!side], HORON_POINT_BYTES) ||
        !EC_POINT_invert(work.group, work.b, work.context))
        goto done;
    status = HORON_ERR_PROTO;
    if (read_point(&work, work.a, theirs, HORON_POINT_BYTES) &&
        EC_POINT_add(work.group, work.a, work.a, work.b, work.context) &&
        EC_POINT_mul(work.group, work.b, NULL, work.a, work.number, work.context) &&
        write_point(&work, work.b, shared_out))
        status = HORON_OK;
done:
    work_end(&work);
    return status;
}
