------------------------------- MODULE Queue -------------------------------
(* Commits (docs/ordered.md, "Three copies"): SETs and ERASEs that their      *)
(* client places in the queue of every replica, that are acknowledged when    *)
(* they stand there, and executed afterwards.                                 *)
(*                                                                            *)
(* A client reads at each replica the highest version known there, takes a    *)
(* higher one, publishes at each, and then looks at each once more: that it   *)
(* lives, and in which epoch. One step each, in any order of replicas. No CAS *)
(* may come between at any of them: it would be above the commit, and know    *)
(* nothing of it.                                                             *)
(*                                                                            *)
(* A process that dies takes its queue with it. Its memory stays, and its     *)
(* lease goes on for a while: clients may take it for alive until its         *)
(* successor is up.                                                           *)

EXTENDS Quorum

VARIABLES
  queue,    \* of each process: commits that are to be executed
  here,     \* of each process: commits that were placed in its queue
  gone,     \* the same of its former process, whose lease may go on
  old,      \* in which epoch that was
  ahead,    \* of each process: the highest version that was to stand in its queue
  learned,  \* of each commit: whose versions its client has read
  begun,    \* of each commit: the highest that was acknowledged or seen when it began
  looked,   \* of each commit: {<<process, epoch>>}, by the looks after it was placed
  raced,    \* commits between whose first and second step at a replica it took a CAS
  owed      \* of each process: what stood in its queue as its epoch was raised

queues == <<queue, here, gone, old, ahead, owed>>
committers == <<learned, begun, looked, raced>>
commits == <<queues, committers>>

Commit == -6
Erasure == -7       \* a commit that erases
IsCommit(m) == kind[m] \in {Commit, Erasure}
Effect(m) == IF kind[m] = Erasure THEN -m ELSE m

CommitTwo == {<<Commit, Commit>>}
StoredCommit == {<<Stored, Commit>>, <<Stored, Erasure>>}
StoredCommitTwo == {<<Stored, Commit, Commit>>, <<Stored, Erasure, Commit>>, <<Stored, Commit, Erasure>>}
CommitSet == {<<Commit, Set>>, <<Set, Commit>>, <<Commit, Erase>>, <<Erasure, Set>>}
StoredCommitCas == {<<Stored, k, c>> : k \in {Commit, Erasure}, c \in {Cas(1), Add}}
              \cup {<<Stored, Cas(1), Commit>>, <<Commit, Add>>}

-----------------------------------------------------------------------------
(* A client *)

Newest(p) == Max(BoundMax(p), ahead[p])

(* Its version is above whatever is known there. *)
Learn(m, p) ==
  /\ IsCommit(m) /\ p \notin learned[m]
  /\ m > Newest(p) \/ ~Follows("commit: bounds")
  /\ learned' = [learned EXCEPT ![m] = @ \cup {p}]
  /\ begun' = IF learned[m] = {} THEN [begun EXCEPT ![m] = Top(acked \cup hits)] ELSE begun
  /\ UNCHANGED <<vars, queues, looked, raced>>

IsPlaced(m, p) == m \in here[p] \cup gone[p]

(* Where a process has died this goes into its memory, and nobody executes it. *)
Publish(m, p) ==
  /\ IsCommit(m) /\ learned[m] = Process /\ ~IsPlaced(m, p)
  /\ ahead' = [ahead EXCEPT ![p] = IF IsUp(p) THEN Max(@, m) ELSE @]
  /\ queue' = [queue EXCEPT ![p] = IF IsUp(p) THEN @ \cup {m} ELSE @]
  /\ here' = [here EXCEPT ![p] = IF IsUp(p) THEN @ \cup {m} ELSE @]
  /\ gone' = [gone EXCEPT ![p] = IF IsUp(p) THEN @ ELSE @ \cup {m}]
  /\ UNCHANGED <<vars, old, owed, committers>>

Counts(m, all) ==
  /\ Cardinality({a[2] : a \in all}) = 1 \/ ~Follows("commit: one epoch")
  /\ m \notin raced \/ ~Follows("commit: no CAS between")

(* How many have to have it. *)
Needed == IF Follows("commit: all three") THEN 3 ELSE 2
HasPlacedAll(m) == Cardinality({p \in Process : IsPlaced(m, p)}) >= Needed

Look(m, p) ==
  /\ IsCommit(m) /\ m \notin acked
  /\ HasPlacedAll(m)
  /\ ~\E a \in looked[m] : a[1] = p
  /\ \/ m \in here[p] /\ IsUp(p)
     \/ m \in gone[p] /\ role[p] = "recovering"
  /\ LET at == IF m \in here[p] THEN epoch[p] ELSE old[p]
         all == looked[m] \cup {<<p, at>>}
         done == Cardinality(all) >= Needed /\ Counts(m, all)
     IN  /\ looked' = [looked EXCEPT ![m] = IF done THEN {} ELSE all]
         /\ acked' = IF done THEN Worth(acked \cup {m}) ELSE acked
  /\ UNCHANGED <<kind, stores, epoch, role, acks, sent, refused, failed, rec, crashes, gets,
                 queues, learned, begun, raced>>

-----------------------------------------------------------------------------
(* A replica *)

(* Rule 1: what lies below the bound is dropped. *)
Execute(m, p) ==
  /\ m \in queue[p]
  /\ queue' = [queue EXCEPT ![p] = @ \ {m}]
  /\ owed' = [owed EXCEPT ![p] = @ \ {m}]
  /\ IF m >= Bound(p) THEN Hold(p, Effect(m), floor[p]) ELSE UNCHANGED stores
  /\ UNCHANGED <<clients, epoch, role, rec, crashes, gets, here, gone, old, ahead, committers>>

(* Whatever comes by another way is behind the queue. *)
Settled(p) == queue[p] = {} \/ ~Follows("commit: behind")
(* So is a vote: a mark sends it there. *)
Unmarked(p) == queue[p] = {} \/ ~Follows("commit: marks")
(* Who raises an epoch has everything executed before it lets itself be copied. *)
Copyable(q) == owed[q] = {} \/ ~Follows("commit: settled")

RaiseAndOwe(q) ==
  /\ Raise(q)
  \* In coarse steps it is all done at once.
  /\ CoarseRecovery => (queue[q] = {} \/ ~Follows("commit: settled"))
  /\ owed' = [owed EXCEPT ![q] = queue[q]]
  /\ UNCHANGED <<queue, here, gone, old, ahead, committers>>

CrashWithQueue(p) ==
  /\ Crash(p)
  /\ queue' = [queue EXCEPT ![p] = {}]
  /\ gone' = [gone EXCEPT ![p] = here[p]]
  /\ here' = [here EXCEPT ![p] = {}]
  /\ old' = [old EXCEPT ![p] = epoch[p]]
  /\ ahead' = [ahead EXCEPT ![p] = 0]
  /\ owed' = [owed EXCEPT ![p] = {}]
  /\ UNCHANGED committers

(* What two were seen to hold goes to the third. *)
RepairCommit(m, p) ==
  /\ kind[m] = Commit /\ m \in hits
  /\ IsUp(p) \/ (Keeps(p) /\ m >= floor[p])
  /\ m >= Bound(p)
  /\ Hold(p, m, floor[p])
  /\ UNCHANGED <<clients, epoch, role, rec, crashes, gets, commits>>

-----------------------------------------------------------------------------

QueueInit == CellInit
  /\ queue = [p \in Process |-> {}] /\ here = [p \in Process |-> {}]
  /\ gone = [p \in Process |-> {}] /\ old = [p \in Process |-> 0]
  /\ ahead = [p \in Process |-> 0] /\ owed = [p \in Process |-> {}]
  /\ learned = [m \in Mutation |-> {}] /\ looked = [m \in Mutation |-> {}]
  /\ begun = [m \in Mutation |-> 0]
  /\ raced = {}

Between(p) == {m \in Mutation : IsCommit(m) /\ p \in learned[m] /\ ~IsPlaced(m, p)}

Conditional(m, p) ==
  /\ Settled(p)
  /\ Receive(m, p)
  /\ raced' = IF have'[p] # have[p] THEN raced \cup Between(p) ELSE raced
  /\ UNCHANGED <<queues, learned, begun, looked>>

Other == \E p \in Process, m \in Mutation :
  Settled(p) /\ (Deliver(m, p) \/ Reject(m, p) \/ Repair(m, p))
Vote == \E p \in Process : Unmarked(p) /\ (FirstVote(p) \/ SecondVote(p))
RecoverOn == Recovered \/ \E q \in Process :
  Copyable(q) /\ (TakeFloor(q) \/ CopyValue(q))

QueueNext ==
  \/ (Other \/ Vote \/ Manage \/ RecoverOn) /\ UNCHANGED commits
  \/ \E p \in Process, m \in Mutation :
       Conditional(m, p) \/ Learn(m, p) \/ Publish(m, p) \/ Look(m, p) \/ Execute(m, p) \/ RepairCommit(m, p)
  \/ \E p \in Process : RaiseAndOwe(p) \/ CrashWithQueue(p)
QueueSpec == QueueInit /\ [][QueueNext]_<<vars, commits>>

-----------------------------------------------------------------------------

(* Versions follow time: a commit that is acknowledged is above whatever was  *)
(* acknowledged or seen before it began. With Fresh: nobody hits that again.  *)
Later == \A m \in acked : IsCommit(m) => begun[m] < m

(* One death at a time loses none: of what is not overwritten two have a copy *)
(* to execute, or have executed it. (Where nothing is evicted.)               *)
Has(p, m) ==
  \/ m \in queue[p]
  \/ IF kind[m] = Commit THEN have[p] = m ELSE have[p] <= 0 /\ Bound(p) >= m
Kept ==
  (\A p \in Process : IsUp(p)) => \A m \in acked :
     \/ ~IsCommit(m)
     \/ \E p \in Process : Bound(p) > m
     \/ \E n \in Mutation : n > m /\ IsCommit(n)
     \/ Cardinality({p \in Process : Has(p, m)}) >= 2

=============================================================================
