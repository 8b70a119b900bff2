----------------------------- MODULE Reversion -----------------------------
(* What rule 12 forbids: a repairer reads the three replicas, one by one, and *)
(* installs the value that two of them hold at a new version, at each replica *)
(* under the condition that this one is as it was read.                       *)

EXTENDS Quorum

VARIABLE seen   \* by the repairer, of each replica: -1 not yet

Read(p) ==
  /\ seen[p] = -1
  /\ IsUp(p)
  /\ seen' = [seen EXCEPT ![p] = Max(have[p], 0)]
  /\ UNCHANGED vars

Install(p) == \E m \in Mutation :
  /\ kind[m] > 100
  /\ \A q \in Process : seen[q] # -1
  /\ Cardinality({q \in Process : seen[q] = Value(m)}) >= 2
  /\ have[p] = seen[p] /\ IsUp(p)
  /\ Hold(p, m, floor[p])
  /\ UNCHANGED <<clients, epoch, role, rec, crashes, gets, seen>>

RepairedInit == CellInit /\ seen = [p \in Process |-> -1]
RepairedNext == (Next /\ UNCHANGED seen) \/ \E p \in Process : Read(p) \/ Install(p)
RepairedSpec == RepairedInit /\ [][RepairedNext]_<<vars, seen>>

=============================================================================
