//! Who could take one more replica of a slice.

use super::draft::Draft;

/// The active server without the slice that then carries least and has the
/// memory for it; with `fresh`, only one that did not give it away lately.
pub(crate) fn coldest(draft: &Draft<'_>, at: usize, fresh: bool) -> Option<usize> {
    let slice = &draft.slices[at];
    let burden = slice.burden_with(slice.servers.len().max(1));
    draft
        .active()
        .filter(|&server| {
            !slice.servers.contains(&draft.servers[server].member.id)
                && draft.has_memory(server, burden.bytes)
                && !(fresh && draft.would_return(server, slice.slice))
        })
        .min_by(|&a, &b| {
            let load =
                |server: usize| draft.load_with(server, draft.servers[server].burden.plus(burden));
            load(a).total_cmp(&load(b)).then(a.cmp(&b))
        })
}
