//! Who could take one more replica of a slice.

use super::draft::Draft;

/// The active server without the slice that then carries least and has the
/// memory for it; with `fresh`, only one that did not give it away lately, and has not
/// shown that it cannot store it.
pub(crate) fn coldest(draft: &Draft<'_>, at: usize, fresh: bool) -> Option<usize> {
    let slice = draft.slices[at].slice;
    coldest_of(draft, at, |server| {
        !(fresh && draft.would_return(server, slice))
    })
}

/// Likewise, of those that have not shown that they cannot store it: preferably one
/// that did not give it away lately.
pub(crate) fn storing(draft: &Draft<'_>, at: usize) -> Option<usize> {
    let slice = draft.slices[at].slice;
    let stores = |server| !draft.refuses(server, slice);
    coldest(draft, at, true).or_else(|| coldest_of(draft, at, stores))
}

/// Likewise, or anybody, if there is nobody else.
pub(crate) fn any(draft: &Draft<'_>, at: usize) -> Option<usize> {
    storing(draft, at).or_else(|| coldest(draft, at, false))
}

fn coldest_of(draft: &Draft<'_>, at: usize, suits: impl Fn(usize) -> bool) -> Option<usize> {
    let slice = &draft.slices[at];
    let burden = slice.burden_with(slice.servers.len().max(1));
    draft
        .active()
        .filter(|&server| {
            !slice.servers.contains(&draft.servers[server].member.id)
                && draft.has_memory(server, burden.bytes)
                && suits(server)
        })
        .min_by(|&a, &b| {
            let load =
                |server: usize| draft.load_with(server, draft.servers[server].burden.plus(burden));
            load(a).total_cmp(&load(b)).then(a.cmp(&b))
        })
}
