------------------------------ MODULE Renewal ------------------------------
(* What rule 12 allows: the third replica has a higher bound than the version *)
(* that two hold, so that this cannot be installed there. A repairer reads    *)
(* all three, one by one. Then an honest CAS goes to the two that agree, one  *)
(* after the other, from what they hold to a version above that bound; if     *)
(* both have taken it in one epoch it is stored, and goes to the third. If    *)
(* the second refuses it has failed, and is taken back at the first.          *)

EXTENDS Quorum

VARIABLES
  seen,   \* by the repairer, of each replica: what it knows of the key, and its epoch
  took    \* who has taken the CAS first, and in which epoch

renewal == <<seen, took>>

None == [known |-> 0, bound |-> -1, epoch |-> 0]
Nothing == [by |-> Nobody, epoch |-> 0]

(* The CAS is the last mutation of the mix. *)
M == Top(Mutation)

Look(p) ==
  /\ sent[M] = {}
  /\ IsUp(p)
  /\ seen' = [seen EXCEPT ![p] = [known |-> have[p], bound |-> Bound(p), epoch |-> epoch[p]]]
  /\ UNCHANGED <<vars, took>>

OneEpoch == Without # "12, one epoch"

(* Whether p and q agree, and the third cannot have what they hold. *)
IsVerdict(p, q) ==
  /\ \A r \in Process : seen[r].bound >= 0
  /\ p # q /\ seen[p].known = kind[M] /\ seen[q].known = kind[M]
  /\ seen[p].epoch = seen[q].epoch \/ ~OneEpoch
  /\ \A r \in Process \ {p, q} : seen[r].bound > kind[M]

First1(p) ==
  /\ sent[M] = {}
  /\ \E q \in Process : IsVerdict(p, q)
  /\ IsUp(p) /\ have[p] = kind[M]
  /\ Hold(p, M, floor[p])
  /\ sent' = [sent EXCEPT ![M] = {Place[p]}]
  /\ took' = [by |-> p, epoch |-> epoch[p]]
  /\ UNCHANGED <<kind, acks, refused, acked, failed, epoch, role, rec, crashes, gets, seen>>

Second2(q) ==
  /\ took.by # Nobody /\ sent[M] = {Place[took.by]}
  /\ IsVerdict(took.by, q)
  /\ IsUp(q)
  /\ sent' = [sent EXCEPT ![M] = @ \cup {Place[q]}]
  /\ took' = Nothing
  /\ IF have[q] = kind[M]
     THEN /\ Hold(q, M, floor[q])
          /\ acked' = IF epoch[q] = took.epoch \/ ~OneEpoch THEN Worth(acked \cup {M}) ELSE acked
          /\ UNCHANGED failed
     ELSE /\ failed' = failed \cup {M}
          /\ UNCHANGED <<stores, acked>>
  /\ UNCHANGED <<kind, acks, refused, epoch, role, rec, crashes, gets, seen>>

RenewInit == CellInit /\ seen = [p \in Process |-> None] /\ took = Nothing
(* Nobody else sends that CAS. *)
Others == \E p \in Process, m \in Mutation : m # M /\ (Deliver(m, p) \/ Receive(m, p) \/ Reject(m, p))
RenewNext ==
  \/ (Others \/ Manage \/ Get \/ Recover) /\ UNCHANGED renewal
  \/ \E p \in Process : (Repair(M, p) \/ Crash(p)) /\ UNCHANGED renewal
  \/ \E p \in Process : Look(p) \/ First1(p) \/ Second2(p)
RenewSpec == RenewInit /\ [][RenewNext]_<<vars, renewal>>

=============================================================================
