//! A fork's child is told from its parent.

use trefoil_region::ForkMark;

#[test]
#[cfg_attr(miri, ignore = "Miri knows no fork")]
fn a_child_knows_its_parents_mark_from_its_own() {
    let mark = ForkMark::new();
    assert!(!mark.is_child() && !ForkMark::new().is_child());
    // SAFETY: the child allocates nothing, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let own = ForkMark::new();
        let is_right = mark.is_child() && !own.is_child();
        // SAFETY: ends the process.
        unsafe { libc::_exit(if is_right { 7 } else { 1 }) };
    }
    assert!(child > 0, "no process left");
    let mut status = 0;
    // SAFETY: waits for the child that was made above.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(libc::WIFEXITED(status));
    assert_eq!(libc::WEXITSTATUS(status), 7);
    assert!(!mark.is_child());
}
