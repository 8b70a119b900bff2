//! skeleton
#[derive(Debug)]
pub(crate) struct Store;
impl Store {
    pub(crate) fn embedded() -> Self {
        Store
    }
}
