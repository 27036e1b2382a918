/* Several drafters as one. Those that go by text cost nothing beside a pass, so all of them are asked, and the best of
 * their proposals is taken where it is worth more than going without; a model is only asked where none is. A model
 * that was passed over has the text to read that was committed meanwhile (draft_request.max_read). */
#include "draft/draft.h"

#include <assert.h>
#include <stdlib.h>

typedef struct draft_list {
    draft base;
    draft *of[DRAFT_SOURCES]; /* (n) owns */
    int n;
    int proposed; /* whose proposal is at hand; -1: nobody's */
    draft_proposal one; /* of the drafter that is being asked */
} draft_list;

static void close_list(draft *base) {
    draft_list *l = (draft_list *)base;
    for (int i = 0; i < l->n; i++)
        draft_close(l->of[i]);
    free(l);
}

static td_code begin(draft *base, const int32_t *tokens, int n, bool (*progress)(void *, int),
                     void *user, td_error *err) {
    draft_list *l = (draft_list *)base;
    td_code rc = TD_OK;
    l->proposed = -1;
    for (int i = 0; i < l->n && !rc; i++)
        rc = draft_begin(l->of[i], tokens, n, draft_by_text(l->of[i]) ? NULL : progress, user, err);
    return rc;
}

static td_code propose(draft *base, const draft_request *req, draft_proposal *out, td_error *err) {
    draft_list *l = (draft_list *)base;
    td_code rc;
    float best = 0;
    out->n = 0;
    out->q = NULL;
    out->source = l->proposed = -1;
    for (int i = 0; i < l->n && req->max_text > 0; i++) {
        if (!draft_by_text(l->of[i]) || (!req->weigh && out->n)) continue;
        draft_request own = *req;
        own.max_tokens = req->max_text;
        own.guess_rate = req->guess_rate ? req->guess_rate + (size_t)i * DRAFT_CLASSES : NULL;
        l->one.n = 0;
        if ((rc = draft_propose(l->of[i], &own, &l->one, err))) return rc;
        l->one.q = NULL;
        l->one.source = i;
        int n = l->one.n;
        const float worth = req->weigh ? req->weigh(req->user, &l->one, &n) : (float)n;
        if (!(worth > best) || n < 1) continue;
        best = worth;
        *out = l->one;
        out->n = n;
        l->proposed = i;
    }
    if (out->n || req->max_tokens < 1) return TD_OK;
    for (int i = 0; i < l->n; i++) {
        if (draft_by_text(l->of[i])) continue;
        draft_request own = *req;
        if (req->ask) own.width = 1; /* it asks for each place */
        rc = draft_propose(l->of[i], &own, out, err);
        out->source = l->proposed = i;
        return rc;
    }
    return TD_OK;
}

static td_code observe(draft *base, const int32_t *tokens, int n_tokens, int n_accepted,
                       td_error *err) {
    draft_list *l = (draft_list *)base;
    td_code first = TD_OK;
    for (int i = 0; i < l->n; i++) {
        const td_code rc = draft_observe(l->of[i], tokens, n_tokens,
                                         i == l->proposed ? n_accepted : 0, first ? NULL : err);
        if (!first) first = rc;
    }
    l->proposed = -1;
    return first;
}

static size_t memory(const draft *base) {
    const draft_list *l = (const draft_list *)base;
    size_t sum = 0;
    for (int i = 0; i < l->n; i++)
        sum += draft_memory(l->of[i]);
    return sum;
}

static bool check(const draft *base, const int32_t *text, int n) {
    const draft_list *l = (const draft_list *)base;
    for (int i = 0; i < l->n; i++)
        if (!draft_check(l->of[i], text, n)) return false;
    return true;
}

static int n_sources(const draft *base) {
    return ((const draft_list *)base)->n;
}

static const draft *source(const draft *base, int i) {
    return ((const draft_list *)base)->of[i];
}

static const draft_ops ops = {.name = "list",
                              .close = close_list,
                              .begin = begin,
                              .propose = propose,
                              .observe = observe,
                              .memory = memory,
                              .check = check,
                              .n_sources = n_sources,
                              .source = source};

td_code draft_list_open(draft **out, draft *const *drafters, int n, td_error *err) {
    int n_models = 0;
    for (int i = 0; i < n; i++)
        n_models += !draft_by_text(drafters[i]);
    if (n < 1 || n > DRAFT_SOURCES || n_models > 1)
        return td_fail(err, TD_E_ARG,
                       "%d drafters, %d of them models: 1 to %d can work together, one of them a "
                       "model",
                       n, n_models, (int)DRAFT_SOURCES);
    draft_list *l = td_calloc(1, sizeof *l);
    if (!l) return td_fail(err, TD_E_MEMORY, "out of memory");
    l->base.ops = &ops;
    for (int i = 0; i < n; i++)
        l->of[i] = drafters[i];
    l->n = n;
    l->proposed = -1;
    *out = &l->base;
    return TD_OK;
}
