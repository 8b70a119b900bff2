------------------------------- MODULE Quorum -------------------------------
(* Three replicas that stay where they are. *)

EXTENDS Mixes, TLC

Stay == [p \in Process |-> p]
Alike == Permutations(Process)

Next == Mutate \/ Manage \/ Get \/ Recover \/ \E p \in Process : Crash(p)
Spec == CellInit /\ [][Next]_vars

=============================================================================
