------------------------------ MODULE Replace ------------------------------
(* A spare takes the place of a backend, whose former process may live, cut   *)
(* off from the configuration: docs/quorum.md, "When a place is given away".  *)
(* Peers learn of it late, one by one.                                        *)
(*                                                                            *)
(*   the configuration gives A's place to S, which begins empty: it recovers  *)
(*   B, C learn of it, at any time; A does, too, and is gone then             *)
(*   whoever raises an epoch, to recover or to pass one on, serves the same   *)
(*   configuration as the one whose epoch it raises                           *)
(*                                                                            *)
(* Clients may count answers of both configurations together, and read A for  *)
(* as long as it lives: more than the code allows. A may lose its memory and  *)
(* recover under the old configuration, before and after its place is given   *)
(* away.                                                                      *)

EXTENDS Mixes, TLC

CONSTANTS A, B, C,      \* the three replicas
          S             \* the spare

VARIABLES
  given,    \* the configuration that names S is in force
  knows     \* who serves it

replaces == <<given, knows>>
all == <<vars, replaces>>

Held == [p \in Process |-> IF p = S THEN A ELSE p]
Alike == Permutations({B, C})

AreOfOneConfig(p, q) == (p \in knows) = (q \in knows) \/ Without = "named"

-----------------------------------------------------------------------------

NewRecovery(p) ==
  LET peers == {Place[q] : q \in First} \ {Place[p]} IN
  [of |-> p, peers |-> peers, raised |-> {}, floors |-> {},
   got |-> [x \in peers |-> -1], tombs |-> [x \in peers |-> -1], done |-> FALSE]

(* A is dead, or is taken for dead. It may be recovering. *)
Give ==
  /\ ~given
  /\ rec.of \in {Nobody, A}
  /\ given' = TRUE
  /\ knows' = {S}
  /\ IF Without = "counted"
     THEN /\ role' = [role EXCEPT ![S] = "up"]
          /\ rec' = NoRecovery
          /\ UNCHANGED <<acks, vote, epoch>>
     ELSE /\ role' = [role EXCEPT ![S] = "recovering"]
          /\ rec' = NewRecovery(S)
          /\ GoTo(S, Top({epoch[q] : q \in Process}) + 1)
  /\ UNCHANGED <<kind, sent, refused, acked, failed, stores, crashes, hits, wrong>>

Learn(p) ==
  /\ given
  /\ p \notin knows
  /\ IF p = A
     THEN /\ role' = [role EXCEPT ![A] = "gone"]
          /\ rec' = IF rec.of = A THEN NoRecovery ELSE rec
          /\ have' = [have EXCEPT ![A] = 0]
          /\ floor' = [floor EXCEPT ![A] = 0]
          /\ UNCHANGED knows
     ELSE /\ knows' = knows \cup {p}
          /\ UNCHANGED <<stores, role, rec>>
  /\ role[p] # "gone"
  /\ UNCHANGED <<clients, epoch, crashes, gets, given>>

(* Of its own configuration: for B and C the holder of the place is A, or S.  *)
IsNamed(q) ==
  CASE q = S -> rec.of \in knows
    [] q = A -> rec.of \notin knows
    [] OTHER -> TRUE
RaiseNamed(q) == Raise(q) /\ IsNamed(q) /\ AreOfOneConfig(rec.of, q)
RecoverNamed == Recovered \/ \E q \in Process :
  RaiseNamed(q) \/ (IsNamed(q) /\ (TakeFloor(q) \/ CopyValue(q)))

(* One that was interrupted begins again, in a new epoch. *)
Resume(p) ==
  /\ rec.of = Nobody
  /\ role[p] = "recovering"
  /\ rec' = NewRecovery(p)
  /\ have' = [have EXCEPT ![p] = 0]
  /\ floor' = [floor EXCEPT ![p] = 0]
  /\ GoTo(p, Top({epoch[q] : q \in Process}) + 1)
  /\ UNCHANGED <<kind, sent, refused, acked, failed, role, crashes, hits, wrong>>

(* Who has learned of an epoch tells the others of the cohort, as it knows    *)
(* them. (A, under the old configuration, of B and C; and they of A.)         *)
PassOn(q, p) ==
  /\ IsUp(p) /\ role[q] \in {"up", "recovering"}
  /\ epoch[q] > epoch[p]
  /\ \E r \in Process : Place[r] # Place[q] /\ epoch[r] = epoch[q]
  /\ AreOfOneConfig(q, p)
  /\ GoTo(p, epoch[q])
  /\ UNCHANGED <<kind, sent, refused, acked, failed, stores, role, rec, crashes, hits, wrong>>

-----------------------------------------------------------------------------
(* One failure at a time in the cohort: who has the place counts, whatever    *)
(* becomes of A.                                                              *)

Holder == IF given THEN S ELSE A
Crashed(p) ==
  /\ p = A \/ \A q \in {Holder, B, C} \ {p} : IsUp(q)
  /\ p = S => given
  /\ Crash(p)

-----------------------------------------------------------------------------

ReplaceInit == CellInit /\ given = FALSE /\ knows = {}
Same == UNCHANGED replaces
ReplaceNext ==
  \/ (Mutate \/ Manage \/ Get \/ RecoverNamed) /\ Same
  \/ Give
  \/ \E p \in {A, B, C} : Learn(p)
  \/ \E p \in Process : (Resume(p) \/ Crashed(p)) /\ Same
  \/ \E p, q \in Process : PassOn(q, p) /\ Same
ReplaceSpec == ReplaceInit /\ [][ReplaceNext]_all

=============================================================================
