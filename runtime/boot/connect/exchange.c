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
#include <openssl/ec.h>
#include <openssl/obj_mac.h>
#include <stdbool.h>

/* RFC 9382, section 4: made from published seeds by hashing. M hides the connector's share. */
static const char *const mask_points[2] = {
    "02886e2f97ace46e55ba9dd7242579f2993b64e16ef3dcab95afd497333d8fa12f",
    "03d8bbd6c639c62937b04d997f38c3770719c629d7014d49a24b4f98baa1292b49"};

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

static bool read_point(const struct work *work, EC_POINT *point,
                       const uint8_t bytes[HORON_POINT_BYTES])
{
    return EC_POINT_oct2point(work->group, point, bytes, HORON_POINT_BYTES, work->context);
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
        ok = EC_POINT_hex2point(work.group, mask_points[side], work.a, work.context) &&
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
        read_point(&work, work.b, masks->of[side]) &&
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
        !read_point(&work, work.b, masks->of[!side]) ||
        !EC_POINT_invert(work.group, work.b, work.context))
        goto done;
    status = HORON_ERR_PROTO;
    if (read_point(&work, work.a, theirs) &&
        EC_POINT_add(work.group, work.a, work.a, work.b, work.context) &&
        EC_POINT_mul(work.group, work.b, NULL, work.a, work.number, work.context) &&
        write_point(&work, work.b, shared_out))
        status = HORON_OK;
done:
    work_end(&work);
    return status;
}
